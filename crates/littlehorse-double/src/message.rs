//! Every message that goes over the wire, as one type.

use crate::proto;
use prost::Message as _;

macro_rules! messages {
    ($($name:ident),* $(,)?) => {
        /// A message, in either direction.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Message {
            /// `google.protobuf.Empty`.
            Empty,
            $($name(proto::$name)),*
        }

        $(impl From<proto::$name> for Message {
            fn from(message: proto::$name) -> Message {
                Message::$name(message)
            }
        })*

        impl Message {
            /// As it goes over the wire.
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    Message::Empty => Vec::new(),
                    $(Message::$name(message) => message.encode_to_vec()),*
                }
            }
        }
    };
}

messages![
    PutTaskDefRequest,
    TaskDef,
    TaskDefId,
    RegisterTaskWorkerRequest,
    RegisterTaskWorkerResponse,
    PollTaskRequest,
    PollTaskResponse,
    ReportTaskRun,
    PutCheckpointRequest,
    PutCheckpointResponse,
    CheckpointId,
    Checkpoint,
    TaskRunId,
    TaskRun,
    LittleHorseVersion,
];

impl From<()> for Message {
    fn from((): ()) -> Message {
        Message::Empty
    }
}
