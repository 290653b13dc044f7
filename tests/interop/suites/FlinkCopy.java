import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Flink's connector copies a topic, as far as it is written now, within one process.
 *
 * <pre>
 * FlinkCopy SERVERS SOURCE SINK GUARANTEE
 * </pre>
 */
public class FlinkCopy {
    public static void main(String[] args) throws Exception {
        DeliveryGuarantee guarantee = DeliveryGuarantee.valueOf(args[3]);
        Configuration settings = new Configuration();
        settings.setString("restart-strategy.type", "none");
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
                        .setProperty("transaction.timeout.ms", "60000")
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.<String>builder()
                                        .setTopic(args[2])
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .build();
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "source").sinkTo(sink);
        flink.execute();
        System.out.println("copied");
    }
}
