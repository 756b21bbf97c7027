//! What a task takes and returns.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::proto;
use crate::proto::type_definition::DefinedType;

/// The type of an input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A JSON object.
    JsonObj,
    /// A JSON array.
    JsonArr,
    /// A 64-bit float.
    Double,
    /// Yes or no.
    Bool,
    /// Text.
    Str,
    /// A 64-bit integer.
    Int,
    /// Bytes.
    Bytes,
    /// The id of a workflow run.
    WfRunId,
    /// A moment.
    Timestamp,
}

impl Type {
    /// LittleHorse's word for it.
    pub fn name(self) -> &'static str {
        self.wire().as_str_name()
    }

    fn wire(self) -> proto::VariableType {
        match self {
            Self::JsonObj => proto::VariableType::JsonObj,
            Self::JsonArr => proto::VariableType::JsonArr,
            Self::Double => proto::VariableType::Double,
            Self::Bool => proto::VariableType::Bool,
            Self::Str => proto::VariableType::Str,
            Self::Int => proto::VariableType::Int,
            Self::Bytes => proto::VariableType::Bytes,
            Self::WfRunId => proto::VariableType::WfRunId,
            Self::Timestamp => proto::VariableType::Timestamp,
        }
    }

    fn of_wire(wire: proto::VariableType) -> Self {
        match wire {
            proto::VariableType::JsonObj => Self::JsonObj,
            proto::VariableType::JsonArr => Self::JsonArr,
            proto::VariableType::Double => Self::Double,
            proto::VariableType::Bool => Self::Bool,
            proto::VariableType::Str => Self::Str,
            proto::VariableType::Int => Self::Int,
            proto::VariableType::Bytes => Self::Bytes,
            proto::VariableType::WfRunId => Self::WfRunId,
            proto::VariableType::Timestamp => Self::Timestamp,
        }
    }

    /// As it goes over the wire.
    pub fn definition(self) -> proto::TypeDefinition {
        proto::TypeDefinition {
            masked: false,
            defined_type: Some(DefinedType::PrimitiveType(self.wire() as i32)),
        }
    }
}

/// A TaskDef to register.
///
/// ```
/// use littlehorse::{NewTaskDef, Type};
///
/// let def = NewTaskDef::new("greet").input("name", Type::Str).returns(Type::Str);
/// assert_eq!(def.shape(), "(name: STR) -> STR");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewTaskDef {
    /// As it goes over the wire.
    pub request: proto::PutTaskDefRequest,
}

impl NewTaskDef {
    /// Without inputs and output.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            request: proto::PutTaskDefRequest {
                name: name.into(),
                input_vars: Vec::new(),
                return_type: Some(proto::ReturnType { return_type: None }),
                description: None,
            },
        }
    }

    /// One more input.
    #[must_use]
    pub fn input(self, name: &str, of: Type) -> Self {
        self.input_of(name, of.definition())
    }

    /// One more input, which must not be shown.
    #[must_use]
    pub fn masked_input(self, name: &str, of: Type) -> Self {
        self.input_of(name, proto::TypeDefinition { masked: true, ..of.definition() })
    }

    /// One more input, of any type: structures, lists and maps have no short name here.
    #[must_use]
    pub fn input_of(mut self, name: &str, of: proto::TypeDefinition) -> Self {
        self.request.input_vars.push(proto::VariableDef {
            name: name.to_owned(),
            type_def: Some(of),
            ..Default::default()
        });
        self
    }

    /// What it returns.
    #[must_use]
    pub fn returns(self, of: Type) -> Self {
        self.returns_of(of.definition())
    }

    /// What it returns, of any type.
    #[must_use]
    pub fn returns_of(mut self, of: proto::TypeDefinition) -> Self {
        self.request.return_type = Some(proto::ReturnType { return_type: Some(of) });
        self
    }

    /// A description for people. Servers before 0.16 drop it.
    #[must_use]
    pub fn describe(mut self, words: impl Into<String>) -> Self {
        self.request.description = Some(words.into());
        self
    }

    /// What it takes and returns, for people.
    pub fn shape(&self) -> String {
        written(
            &self.request.input_vars,
            self.request.return_type.as_ref(),
            self.request.description.as_deref(),
        )
    }

    /// Names are letters, digits and hyphens; for servers before 1.0 without capitals.
    pub(crate) fn check(&self) -> Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let name = &self.request.name;
        if name.is_empty() || !name.chars().all(fits) {
            return Err(Error::value(
                format!("the name {name:?} of a TaskDef"),
                "may have letters, digits and hyphens only",
            ));
        }
        Ok(())
    }
}

/// What a registered TaskDef takes and returns, for people.
pub fn shape(def: &proto::TaskDef) -> String {
    written(&def.input_vars, def.return_type.as_ref(), def.description.as_deref())
}

/// The primitive type of an input, if it has one. Reads the older way of writing it, too.
pub fn input_type(input: &proto::VariableDef) -> Option<Type> {
    let number = match &input.type_def {
        Some(proto::TypeDefinition { defined_type: Some(DefinedType::PrimitiveType(number)), .. }) => *number,
        // Servers of 0.14 leave the number of JSON_OBJ out, which is 0.
        Some(proto::TypeDefinition { defined_type: None, .. }) => 0,
        Some(_) => return None,
        None => input.r#type?,
    };
    proto::VariableType::try_from(number).ok().map(Type::of_wire)
}

/// Whether a registered TaskDef is the wanted one.
pub(crate) fn same(wanted: &proto::PutTaskDefRequest, registered: &proto::TaskDef) -> bool {
    written(&wanted.input_vars, wanted.return_type.as_ref(), wanted.description.as_deref())
        == shape(registered)
}

fn written(
    inputs: &[proto::VariableDef],
    returns: Option<&proto::ReturnType>,
    description: Option<&str>,
) -> String {
    let inputs: Vec<String> = inputs.iter().map(input_written).collect();
    let mut text = format!("({})", inputs.join(", "));
    match returns.and_then(|returns| returns.return_type.as_ref()) {
        Some(of) => _ = write!(text, " -> {}", type_written(of)),
        None => text.push_str(" -> nothing"),
    }
    if let Some(words) = description {
        _ = write!(text, " {words:?}");
    }
    text
}

fn input_written(input: &proto::VariableDef) -> String {
    let of = match &input.type_def {
        Some(of) => type_written(of),
        None => input.r#type.map(primitive_written).unwrap_or_else(|| "unknown".into()),
    };
    let masked = if input.masked_value == Some(true) { " masked" } else { "" };
    let default = if input.default_value.is_some() { " with a default" } else { "" };
    format!("{}: {of}{masked}{default}", input.name)
}

fn type_written(of: &proto::TypeDefinition) -> String {
    let inner = |of: Option<&proto::TypeDefinition>| of.map_or_else(|| "unknown".into(), type_written);
    let mut text = match &of.defined_type {
        Some(DefinedType::PrimitiveType(number)) => primitive_written(*number),
        None => primitive_written(0),
        Some(DefinedType::StructDefId(id)) => format!("struct {} version {}", id.name, id.version),
        Some(DefinedType::InlineArrayDef(array)) => format!("[{}]", inner(array.array_type.as_deref())),
        Some(DefinedType::InlineMapDef(map)) => {
            format!("map of {} to {}", inner(map.key_type.as_deref()), inner(map.value_type.as_deref()))
        }
        Some(DefinedType::InlineStructDef(fields)) => {
            let mut fields: Vec<String> = fields
                .fields
                .iter()
                .map(|(name, field)| format!("{name}: {}", inner(field.field_type.as_ref())))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
    };
    if of.masked {
        text.push_str(" masked");
    }
    text
}

fn primitive_written(number: i32) -> String {
    proto::VariableType::try_from(number)
        .map_or_else(|_| format!("type {number}"), |of| of.as_str_name().to_owned())
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq)]
pub enum Registered {
    /// It is registered as it was asked for, now or before.
    Same(proto::TaskDef),
    /// Another TaskDef has the name.
    Differs(proto::TaskDef),
}

impl Registered {
    /// The TaskDef, if it is the wanted one; otherwise an error that shows both.
    pub fn must_be(self, wanted: &NewTaskDef) -> Result<proto::TaskDef> {
        match self {
            Self::Same(def) => Ok(def),
            Self::Differs(def) => Err(Error::Differs {
                name: wanted.request.name.clone(),
                registered: shape(&def),
                wanted: wanted.shape(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(request: &proto::PutTaskDefRequest) -> proto::TaskDef {
        proto::TaskDef {
            id: Some(proto::TaskDefId { name: request.name.clone() }),
            input_vars: request.input_vars.clone(),
            created_at: None,
            return_type: request.return_type.clone(),
            description: request.description.clone(),
        }
    }

    #[test]
    fn every_difference_is_seen_and_shown() {
        let wanted = NewTaskDef::new("t").input("a", Type::Str).returns(Type::JsonObj);
        let base = || NewTaskDef::new("t");
        for (other, shape) in [
            (base().input("b", Type::Str).returns(Type::JsonObj), "(b: STR) -> JSON_OBJ"),
            (base().input("a", Type::Int).returns(Type::JsonObj), "(a: INT) -> JSON_OBJ"),
            (base().masked_input("a", Type::Str).returns(Type::JsonObj), "(a: STR masked) -> JSON_OBJ"),
            (base().input("a", Type::Str), "(a: STR) -> nothing"),
            (base().returns(Type::JsonObj), "() -> JSON_OBJ"),
            (base().input("a", Type::Str).returns(Type::JsonObj).describe("x"), "(a: STR) -> JSON_OBJ \"x\""),
        ] {
            let there = registered(&other.request);
            assert!(!same(&wanted.request, &there), "{shape}");
            let told = Registered::Differs(there).must_be(&wanted).unwrap_err().to_string();
            assert!(told.contains(&format!("registered: {shape}\n")), "{told}");
            assert!(told.contains("wanted:     (a: STR) -> JSON_OBJ\n"), "{told}");
        }
        let there = registered(&wanted.request);
        assert!(same(&wanted.request, &there));
        assert_eq!(Registered::Same(there.clone()).must_be(&wanted).unwrap(), there);
    }

    /// Servers of 0.14 leave JSON_OBJ out, since its number is 0; those before had another field.
    #[test]
    fn types_of_older_servers_are_understood() {
        let wanted = NewTaskDef::new("t").input("a", Type::JsonObj);
        let mut there = registered(&wanted.request);
        there.input_vars[0].type_def = Some(proto::TypeDefinition::default());
        assert!(same(&wanted.request, &there));
        assert_eq!(input_type(&there.input_vars[0]), Some(Type::JsonObj));
        there.input_vars[0].type_def = None;
        there.input_vars[0].r#type = Some(proto::VariableType::JsonObj as i32);
        assert!(same(&wanted.request, &there));
        assert_eq!(input_type(&there.input_vars[0]), Some(Type::JsonObj));
    }

    #[test]
    fn structured_types_can_be_read() {
        let array = proto::InlineArrayDef { array_type: Some(Box::new(Type::Int.definition())) };
        let of = |defined| proto::TypeDefinition { defined_type: Some(defined), masked: false };
        let map = proto::InlineMapDef {
            key_type: Some(Box::new(Type::Str.definition())),
            value_type: Some(Box::new(of(DefinedType::InlineArrayDef(Box::new(array))))),
        };
        let id = proto::StructDefId { name: "order".into(), version: 2 };
        let def = NewTaskDef::new("t")
            .input_of("m", of(DefinedType::InlineMapDef(Box::new(map))))
            .returns_of(of(DefinedType::StructDefId(id)));
        assert_eq!(def.shape(), "(m: map of STR to [INT]) -> struct order version 2");
        assert_eq!(input_type(&def.request.input_vars[0]), None);
    }

    #[test]
    fn names_are_checked() {
        for (name, fits) in [("greet-2", true), ("Greet", true), ("", false), ("a b", false), ("ä", false)] {
            assert_eq!(NewTaskDef::new(name).check().is_ok(), fits, "{name}");
        }
    }
}
