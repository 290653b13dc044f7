import java.io.File;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.generated.GroupMetadataKey;
import org.apache.kafka.coordinator.group.generated.GroupMetadataValue;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitValue;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKey;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * What Kafka's own storage classes make of partition directories, and directories that they write.
 *
 * <pre>
 * recover DIR...  reads every segment as a broker does after a crash, writes its indexes anew, and
 *                 the producers' state after each segment as OFFSET.kafka-snapshot
 * write DIR       makes the directories of tests/golden/kafka
 * </pre>
 */
public class KafkaSide {
    private static final String INDEX_INTERVAL_BYTES = "1024";
    private static final long TIME_MS = 1_700_000_000_000L;
    private static final int LEADER_EPOCH = 3;

    public static void main(String[] args) throws Exception {
        if (args[0].equals("recover")) {
            for (int number = 1; number < args.length; number++) {
                new Log(new File(args[number])).recover(".kafka-snapshot");
            }
        } else {
            File data = new File(args[1]);
            writeData(new Log(new File(data, "flights-0")));
            writeTransactions(new Log(new File(data, "__transaction_state-0")));
            writeOffsets(new Log(new File(data, "__consumer_offsets-0")));
        }
        System.exit(0);
    }

    /** One partition directory, and what a broker keeps beside it. */
    private static final class Log {
        final File directory;
        final ProducerStateManager producers;
        final LeaderEpochFileCache epochs;
        final LogConfig config = new LogConfig(Map.of("index.interval.bytes", INDEX_INTERVAL_BYTES));
        LogSegment active;
        long endOffset = 0;

        Log(File directory) throws Exception {
            this.directory = directory;
            directory.mkdirs();
            String name = directory.getName();
            int dash = name.lastIndexOf('-');
            TopicPartition partition = new TopicPartition(
                name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
            producers = new ProducerStateManager(partition, directory, 900_000,
                new ProducerStateManagerConfig(86_400_000, false), Time.SYSTEM);
            KafkaScheduler scheduler = new KafkaScheduler(1);
            scheduler.startup();
            epochs = new LeaderEpochFileCache(partition, new LeaderEpochCheckpointFile(
                LeaderEpochCheckpointFile.newFile(directory), new LogDirFailureChannel(1)), scheduler);
        }

        LogSegment open(long baseOffset, boolean exists) throws Exception {
            return LogSegment.open(directory, baseOffset, config, Time.SYSTEM, exists, 0, false, "");
        }

        /** What the producers' state is after each segment, in files that end with suffix. */
        void recover(String suffix) throws Exception {
            TreeSet<Long> bases = new TreeSet<>();
            for (String name : directory.list()) {
                if (name.endsWith(".log")) {
                    bases.add(Long.parseLong(name.substring(0, 20)));
                }
            }
            for (long base : bases) {
                LogSegment segment = open(base, true);
                long cut = segment.recover(producers, epochs);
                long end = segment.readNextOffset();
                segment.txnIndex().sanityCheck();
                producers.updateMapEndOffset(end);
                File snapshot = new File(directory, String.format("%020d%s", end, suffix));
                ProducerStateManager.writeSnapshot(snapshot, producers.activeProducers(), true);
                System.out.println(directory.getName() + " segment " + base + " ends " + end + " cut " + cut);
                segment.close();
            }
            System.out.println(directory.getName() + " epochs " + epochs.epochEntries());
        }

        void roll() throws Exception {
            active.close();
            active = open(endOffset, false);
        }

        void append(MemoryRecords records) throws Exception {
            if (active == null) {
                active = open(0, false);
                epochs.assign(LEADER_EPOCH, 0);
            }
            for (MutableRecordBatch batch : records.batches()) {
                batch.setPartitionLeaderEpoch(LEADER_EPOCH);
                active.append(batch.lastOffset(), records);
                endOffset = batch.nextOffset();
            }
        }

        void data(Compression codec, long pid, int epoch, int sequence, boolean transactional, int count)
                throws Exception {
            MemoryRecordsBuilder builder = builder(codec, pid, epoch, sequence, transactional);
            for (int index = 0; index < count; index++) {
                long number = endOffset + index;
                Header[] headers = number % 7 == 0
                    ? new Header[] {new RecordHeader("h", bytes("x")), new RecordHeader("n", (byte[]) null)}
                    : new Header[0];
                builder.append(TIME_MS + number * 10 - 25 * (number % 3),
                    number % 5 == 0 ? null : bytes("key " + number),
                    number % 11 == 10 ? null : bytes("value " + number + " of many, many, many"), headers);
            }
            append(builder.build());
        }

        void record(ApiMessage key, int keyVersion, ApiMessage value, int valueVersion) throws Exception {
            MemoryRecordsBuilder builder = builder(Compression.NONE, -1, -1, -1, false);
            builder.append(TIME_MS + endOffset,
                array(MessageUtil.toVersionPrefixedByteBuffer((short) keyVersion, key)),
                value == null ? null
                    : array(MessageUtil.toVersionPrefixedByteBuffer((short) valueVersion, value)));
            append(builder.build());
        }

        MemoryRecordsBuilder builder(Compression codec, long pid, int epoch, int sequence, boolean txn) {
            return MemoryRecords.builder(ByteBuffer.allocate(65_536), RecordBatch.MAGIC_VALUE_V2, codec,
                TimestampType.CREATE_TIME, endOffset, TIME_MS, pid, (short) epoch, sequence, txn,
                LEADER_EPOCH);
        }

        void marker(long pid, int epoch, ControlRecordType type) throws Exception {
            append(MemoryRecords.withEndTransactionMarker(endOffset, TIME_MS + endOffset * 10, LEADER_EPOCH,
                pid, (short) epoch, new EndTransactionMarker(type, 5)));
        }

        void finish() throws Exception {
            active.close();
            recover(".snapshot");
        }
    }

    private static void writeData(Log log) throws Exception {
        int round = 0;
        for (CompressionType type : CompressionType.values()) {
            Compression codec = Compression.of(type).build();
            log.data(codec, -1, -1, -1, false, 12);
            log.data(codec, 1_000, 0, round * 8, false, 8);
            log.data(codec, 3_000, round, 0, true, 3);
            log.data(codec, 2_000, round, 0, true, 9);
            log.marker(3_000, round + 1, ControlRecordType.ABORT);
            log.marker(2_000, round + 1, ControlRecordType.COMMIT);
            if (round == 2) {
                log.roll();
            }
            round++;
        }
        log.data(Compression.NONE, 4_000, 7, 0, true, 1);
        log.finish();
    }

    private static void writeTransactions(Log log) throws Exception {
        TransactionLogKey key = new TransactionLogKey().setTransactionalId("loader");
        for (int status = 0; status <= 5; status++) {
            log.record(key, 0, transaction(status), status % 2);
        }
        log.record(key, 0, transaction(2).setPreviousProducerId(1_999).setNextProducerId(2_001)
            .setClientTransactionVersion((short) 2), 1);
        log.record(new TransactionLogKey().setTransactionalId("gone"), 0, null, 0);
        log.finish();
    }

    private static TransactionLogValue transaction(int status) {
        TransactionLogValue.PartitionsSchema delays =
            new TransactionLogValue.PartitionsSchema().setTopic("delays").setPartitionIds(List.of(1));
        TransactionLogValue.PartitionsSchema flights =
            new TransactionLogValue.PartitionsSchema().setTopic("flights").setPartitionIds(List.of(0, 2));
        return new TransactionLogValue().setProducerId(2_000).setProducerEpoch((short) status)
            .setTransactionTimeoutMs(60_000).setTransactionStatus((byte) status)
            .setTransactionPartitions(status == 0 ? null : List.of(delays, flights))
            .setTransactionLastUpdateTimestampMs(TIME_MS + 5)
            .setTransactionStartTimestampMs(status == 0 ? -1 : TIME_MS);
    }

    private static void writeOffsets(Log log) throws Exception {
        OffsetCommitKey key = new OffsetCommitKey().setGroup("g").setTopic("flights").setPartition(0);
        GroupMetadataKey group = new GroupMetadataKey().setGroup("g");
        for (int version = 0; version <= 4; version++) {
            OffsetCommitValue value =
                new OffsetCommitValue().setOffset(42).setMetadata("µ").setCommitTimestamp(TIME_MS);
            if (version == 1) {
                value.setExpireTimestamp(TIME_MS + 9);
            }
            log.record(key, 1, version < 3 ? value : value.setLeaderEpoch(3), version);
            GroupMetadataValue.MemberMetadata member = new GroupMetadataValue.MemberMetadata()
                .setMemberId("consumer-1").setGroupInstanceId(version < 3 ? null : "worker-0")
                .setClientId("c").setClientHost("/ray").setRebalanceTimeout(version < 1 ? -1 : 300_000)
                .setSessionTimeout(45_000).setSubscription(bytes("subscription"))
                .setAssignment(bytes("assignment"));
            log.record(group, 2, new GroupMetadataValue().setProtocolType("connect").setGeneration(1)
                .setProtocol("range").setLeader("consumer-1")
                .setCurrentStateTimestamp(version < 2 ? -1 : TIME_MS).setMembers(List.of(member)), version);
        }
        log.record(key, 1, null, 0);
        log.record(group, 2, null, 0);
        log.finish();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] array(ByteBuffer buffer) {
        return Arrays.copyOfRange(buffer.array(), buffer.arrayOffset() + buffer.position(),
            buffer.arrayOffset() + buffer.limit());
    }
}
