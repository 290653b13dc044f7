import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Flink's connector copies a topic, as far as it is written now, within one process.
 *
 * <pre>
 * FlinkCopy SERVERS SOURCE SINK GUARANTEE NAMES FAILURES
 * </pre>
 *
 * NAMES is how transactions are named. FAILURES is how often the job fails, each time after a
 * checkpoint: it begins again there, and commits what had been written by then.
 */
public class FlinkCopy {
    /** Passes values on, slowly enough for several checkpoints, and fails after the first ones. */
    public static class Failing implements MapFunction<String, String>, CheckpointListener {
        static final AtomicInteger failuresLeft = new AtomicInteger();

        @Override
        public String map(String value) throws InterruptedException {
            Thread.sleep(1);
            return value;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            if (failuresLeft.getAndUpdate(left -> Math.max(0, left - 1)) > 0) {
                throw new IllegalStateException("fails after checkpoint " + checkpoint);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        DeliveryGuarantee guarantee = DeliveryGuarantee.valueOf(args[3]);
        TransactionNamingStrategy names = TransactionNamingStrategy.valueOf(args[4]);
        Failing.failuresLeft.set(Integer.parseInt(args[5]));
        Configuration settings = new Configuration();
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", args[5]);
        settings.setString("restart-strategy.fixed-delay.delay", "100 ms");
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        flink.enableCheckpointing(500);
        KafkaSource<String> source =
                KafkaSource.<String>builder()
                        .setBootstrapServers(args[0])
                        .setTopics(args[1])
                        .setGroupId("flink-" + args[1])
                        .setProperty("isolation.level", "read_committed")
                        .setProperty("commit.offsets.on.checkpoint", "true")
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setBounded(OffsetsInitializer.latest())
                        .setValueOnlyDeserializer(new SimpleStringSchema())
                        .build();
        KafkaSink<String> sink =
                KafkaSink.<String>builder()
                        .setBootstrapServers(args[0])
                        .setDeliveryGuarantee(guarantee)
                        .setTransactionalIdPrefix("flink-" + args[2])
                        .setTransactionNamingStrategy(names)
                        .setProperty("transaction.timeout.ms", "60000")
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.<String>builder()
                                        .setTopic(args[2])
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
                .map(new Failing())
                .disableChaining()
                .sinkTo(sink);
        flink.execute();
        System.out.println("copied, " + Failing.failuresLeft.get() + " failures left");
    }
}
