//! The value of a variable, with one thing more than generated code would have: a kind that this crate does not know is
//! noticed. Generated code would skip it, and a value of a newer server would look like null.

use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, skip_field};

/// A value; nothing set is null.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VariableValue {
    pub value: Option<variable_value::Value>,
}

/// The kinds of values.
pub mod variable_value {
    use super::super as proto;

    /// A value of one kind.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Value {
        #[prost(string, tag = "2")]
        JsonObj(String),
        #[prost(string, tag = "3")]
        JsonArr(String),
        #[prost(double, tag = "4")]
        Double(f64),
        #[prost(bool, tag = "5")]
        Bool(bool),
        #[prost(string, tag = "6")]
        Str(String),
        #[prost(int64, tag = "7")]
        Int(i64),
        #[prost(bytes, tag = "8")]
        Bytes(Vec<u8>),
        #[prost(message, tag = "9")]
        WfRunId(proto::WfRunId),
        #[prost(message, tag = "10")]
        UtcTimestamp(prost_types::Timestamp),
        #[prost(message, tag = "11")]
        Struct(proto::Struct),
        #[prost(message, tag = "12")]
        Array(proto::Array),
        #[prost(message, tag = "13")]
        Map(proto::Map),
        /// A value of a kind that is not known here, with its number. It is never sent.
        #[prost(uint32, tag = "536870911")]
        Unknown(u32),
    }
}

impl Message for VariableValue {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.value {
            None | Some(variable_value::Value::Unknown(_)) => {}
            Some(value) => value.encode(buf),
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        match tag {
            2..=13 => variable_value::Value::merge(&mut self.value, tag, wire_type, buf, ctx),
            tag => {
                skip_field(wire_type, tag, buf, ctx)?;
                // Beside a known kind it is something else, that can be done without.
                self.value.get_or_insert(variable_value::Value::Unknown(tag));
                Ok(())
            }
        }
    }

    fn encoded_len(&self) -> usize {
        match &self.value {
            None | Some(variable_value::Value::Unknown(_)) => 0,
            Some(value) => value.encoded_len(),
        }
    }

    fn clear(&mut self) {
        self.value = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_tomorrow_is_noticed_and_nothing_else_is_lost() {
        // Field 14 as text, 15 as a number, inside an input that has a name behind it.
        for (number, bytes) in [(14, b"\x72\x02hi".as_slice()), (15, b"\x78\x96\x01")] {
            let value = VariableValue::decode(bytes).unwrap();
            assert_eq!(value.value, Some(variable_value::Value::Unknown(number)));
            assert_eq!((value.encoded_len(), value.encode_to_vec()), (0, vec![]));
            let mut input = vec![0x12, bytes.len() as u8];
            input.extend_from_slice(bytes);
            input.extend_from_slice(b"\x0a\x01n\x18\x01");
            let input = super::super::VarNameAndVal::decode(input.as_slice()).unwrap();
            assert_eq!((input.var_name.as_str(), input.masked, input.value), ("n", true, Some(value)));
        }
        let known = Some(variable_value::Value::Int(5));
        assert_eq!(VariableValue::decode(b"\x38\x05\x78\x01".as_slice()).unwrap().value, known);
        assert_eq!(VariableValue::decode(b"\x78\x01\x38\x05".as_slice()).unwrap().value, known);
        assert_eq!(VariableValue::decode(b"".as_slice()).unwrap(), VariableValue::default());
    }
}
