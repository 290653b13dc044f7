import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's tools one after the other, in one process: starting Java takes longer than most do.
 *
 * <p>Each line of input is an object with "tool", a class, its "arguments", and what is "typed" into
 * it. The answer is a line with its "status" and what it "printed".
 */
public class ToolServer {
    private static final List<Runnable> hooks = new ArrayList<>();
    private static ByteArrayOutputStream printed;
    private static Integer status;
    private static int end;

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        String line;
        while ((line = questions.readLine()) != null) {
            JsonNode asked = json.readTree(line);
            printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
            byte[] typed = asked.get("typed").asText().getBytes(StandardCharsets.UTF_8);
            System.setIn(new ByteArrayInputStream(typed));
            System.setOut(out);
            System.setErr(out);
            String[] arguments = json.convertValue(asked.get("arguments"), String[].class);
            run(asked.get("tool").asText(), arguments);
            int begin = printed.size();
            hooks.forEach(Runnable::run);
            byte[] all = printed.toByteArray();
            String text = new String(all, 0, end, StandardCharsets.UTF_8);
            text += new String(all, begin, all.length - begin, StandardCharsets.UTF_8);
            answers.println(json.writeValueAsString(Map.of("status", status, "printed", text)));
        }
    }

    private static void run(String tool, String[] arguments) throws ReflectiveOperationException {
        status = null;
        hooks.clear();
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            end(0);
        } catch (InvocationTargetException error) {
            if (status == null) {
                error.getCause().printStackTrace();
                end = printed.size();
                status = 1;
            }
        } catch (Ended ended) {
            // It has a status.
        }
    }

    /** The first status is the one: a tool may catch what ends it, print that, and end again. */
    private static void end(int code) {
        if (status == null) {
            end = printed.size();
            status = code;
        }
        throw new Ended();
    }

    private static class Ended extends Error {}
}
