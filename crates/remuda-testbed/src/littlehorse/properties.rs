//! The settings of Kafka and of the server: one node each, little memory, everything on 127.0.0.1.

use std::path::Path;

/// Kafka's ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct KafkaPorts {
    pub(super) broker: u16,
    pub(super) controller: u16,
}

/// The server's ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerPorts {
    /// For clients and workers.
    pub(super) api: u16,
    /// For other servers of the cluster, of which there are none.
    pub(super) internal: u16,
    /// For those who ask by HTTP how it is.
    pub(super) health: u16,
}

/// Kafka as broker and controller in one process.
pub(super) fn kafka(ports: KafkaPorts, data: &Path) -> String {
    let KafkaPorts { broker, controller } = ports;
    let data = data.display();
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=INTERNAL://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=INTERNAL://127.0.0.1:{broker}
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT
log.dirs={data}
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
num.recovery.threads.per.data.dir=1
log.cleaner.dedupe.buffer.size=16777216
log.segment.bytes=67108864
log.index.size.max.bytes=1048576
"
    )
}

/// The server. Its state is written often, so that a restart has little to do, and a server that was killed is given
/// up by Kafka as early as Kafka allows.
pub(super) fn server(kafka: KafkaPorts, ports: ServerPorts, state: &Path) -> String {
    let ServerPorts { api, internal, health } = ports;
    let (broker, state) = (kafka.broker, state.display());
    format!(
        "LHS_KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:{broker}
LHS_CLUSTER_ID=remuda-test
LHS_INSTANCE_ID=1
LHS_REPLICATION_FACTOR=1
LHS_CLUSTER_PARTITIONS=2
LHS_OUTPUT_TOPIC_PARTITIONS=1
LHS_SHOULD_CREATE_TOPICS=true
LHS_STATE_DIR={state}
LHS_CORE_STREAM_THREADS=1
LHS_STREAMS_NUM_STANDBY_REPLICAS=0
LHS_STREAMS_NUM_WARMUP_REPLICAS=1
LHS_STREAMS_SESSION_TIMEOUT=6000
LHS_CORE_STREAMS_COMMIT_INTERVAL=100
LHS_CORE_MEMTABLE_SIZE_BYTES=8388608
LHS_CORE_STATESTORE_CACHE_BYTES=8388608
LHS_LISTENERS=PLAIN:{api}
LHS_LISTENERS_PROTOCOL_MAP=PLAIN:PLAIN
LHS_ADVERTISED_LISTENERS=PLAIN://127.0.0.1:{api}
LHS_INTERNAL_BIND_PORT={internal}
LHS_INTERNAL_ADVERTISED_HOST=127.0.0.1
LHS_INTERNAL_ADVERTISED_PORT={internal}
LHS_HEALTH_SERVICE_PORT={health}
"
    )
}

/// What both print. There is no such file in their jars, and without one they print errors about that only.
pub(super) const LOG: &str = "status=warn
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{HH:mm:ss.SSS} %-5p %c{1} %m%n%ex{short}
rootLogger.level=warn
rootLogger.appenderRef.c.ref=C
";
