//! What a server says about its nodes, looked up quickly.
//!
//! A graph may have thousands of nodes of one class, and a class may have lists with many thousands of choices. Whatever
//! would be read again for every node is read once here, for the time of one check, and found by its address. Short
//! lists are read as they are.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::rc::Rc;

use serde_json::Value;

use crate::object_info::{InputKind, InputSpec, NodeInfo, ObjectInfo, OutputSpec, has_model_ending};

use super::expand::{Expected, expected_always};
use super::types;
use super::values::{Key, python_equal};

/// Lists up to this length are not worth a table.
const SHORT: usize = 32;

/// The tables of one check.
#[derive(Default)]
pub(super) struct Known<'a> {
    expected: HashMap<usize, Option<Rc<Vec<Expected<'a>>>>>,
    classes: HashMap<usize, Class<'a>>,
    lists: HashMap<usize, List>,
    options: HashMap<usize, HashMap<Key, usize>>,
    /// The types that some node puts out.
    made: Option<HashSet<&'a str>>,
    only_links: HashMap<usize, bool>,
    fits: HashMap<(usize, usize), bool>,
}

/// A class whose inputs are asked for by name.
struct Class<'a> {
    inputs: HashMap<&'a str, &'a InputSpec>,
    /// Names that VideoHelperSuite lists under `formats` of another input: format → `[[name, type, …], …]`.
    formats: HashSet<&'a str>,
    hashing: RandomState,
    /// Hashes of the names of dynamic inputs, with the names.
    dynamic: HashMap<u64, Vec<&'a str>>,
}

/// A long list of choices.
struct List {
    keys: HashSet<Key>,
    all_texts: bool,
    models: bool,
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<u8>() as usize
}

impl<'a> Known<'a> {
    /// What the class expects of every node, if that does not depend on what a node gives.
    pub(super) fn expected(&mut self, info: &'a NodeInfo) -> Option<Rc<Vec<Expected<'a>>>> {
        self.expected.entry(address(info)).or_insert_with(|| expected_always(info).map(Rc::new)).clone()
    }

    /// The input of a class, hidden ones included.
    pub(super) fn input(&mut self, info: &'a NodeInfo, name: &str) -> Option<&'a InputSpec> {
        if info.inputs.len() <= SHORT {
            return info.input(name);
        }
        self.class(info).inputs.get(name).copied()
    }

    /// Whether an input comes with the choice of a format.
    pub(super) fn comes_with_a_format(&mut self, info: &'a NodeInfo, name: &str) -> bool {
        self.class(info).formats.contains(name)
    }

    /// Whether a name belongs to a dynamic input of the class, also where the server would not look for it.
    pub(super) fn is_part_of_dynamic(&mut self, info: &'a NodeInfo, name: &str) -> bool {
        let class = self.class(info);
        if class.dynamic.is_empty() {
            return false;
        }
        let known =
            |hash: u64, part: &str| class.dynamic.get(&hash).is_some_and(|names| names.contains(&part));
        let mut hasher = class.hashing.build_hasher();
        let mut read = 0;
        for (dot, _) in name.match_indices('.') {
            hasher.write(&name.as_bytes()[read..dot]);
            if known(hasher.finish(), &name[..dot]) {
                return true;
            }
            hasher.write(b".");
            read = dot + 1;
        }
        hasher.write(&name.as_bytes()[read..]);
        known(hasher.finish(), name)
    }

    fn class(&mut self, info: &'a NodeInfo) -> &Class<'a> {
        self.classes.entry(address(info)).or_insert_with(|| Class::new(info))
    }

    /// Whether a value is among the choices, as Python compares them.
    pub(super) fn has_choice(&mut self, choices: &'a [Value], value: &Value) -> bool {
        match choices.len() <= SHORT {
            true => choices.iter().any(|choice| python_equal(choice, value)),
            false => self.list(choices).keys.contains(&Key::of(value)),
        }
    }

    /// Whether all choices are texts.
    pub(super) fn all_texts(&mut self, choices: &'a [Value]) -> bool {
        match choices.len() <= SHORT {
            true => choices.iter().all(Value::is_string),
            false => self.list(choices).all_texts,
        }
    }

    /// Whether the choices are model files.
    pub(super) fn lists_models(&mut self, choices: &'a [Value]) -> bool {
        match choices.len() <= SHORT {
            true => names_models(choices),
            false => self.list(choices).models,
        }
    }

    fn list(&mut self, choices: &'a [Value]) -> &List {
        self.lists.entry(address(choices)).or_insert_with(|| List {
            keys: choices.iter().map(Key::of).collect(),
            all_texts: choices.iter().all(Value::is_string),
            models: names_models(choices),
        })
    }

    /// The inputs that a choice brings.
    pub(super) fn option(
        &mut self,
        options: &'a [(Value, Vec<InputSpec>)],
        value: &Value,
    ) -> Option<&'a [InputSpec]> {
        let at = match options.len() <= SHORT {
            true => options.iter().position(|(key, _)| python_equal(key, value)),
            false => {
                let table = self.options.entry(address(options)).or_insert_with(|| {
                    // Of equal ones the first counts.
                    options.iter().enumerate().rev().map(|(at, (key, _))| (Key::of(key), at)).collect()
                });
                table.get(&Key::of(value)).copied()
            }
        }?;
        options.get(at).map(|(_, inputs)| inputs.as_slice())
    }

    /// Whether literals are out of place in an input of this type: some node puts it out, and it has no widget.
    pub(super) fn takes_only_links(&mut self, all: &'a ObjectInfo, kind: &'a str) -> bool {
        if let Some(known) = self.only_links.get(&address(kind)) {
            return *known;
        }
        let made = self.made.get_or_insert_with(|| {
            all.iter().flat_map(|node| &node.outputs).map(|output| output.kind.as_str()).collect()
        });
        let takes_literals =
            |part: &str| matches!(part, "INT" | "FLOAT" | "STRING" | "BOOLEAN" | "COMBO" | "*");
        let only = kind.split(',').map(str::trim).all(|part| made.contains(part) && !takes_literals(part));
        self.only_links.insert(address(kind), only);
        only
    }

    /// Whether ComfyUI would accept a link from this output to this input.
    pub(super) fn fits(&mut self, output: &'a OutputSpec, input: &'a InputKind) -> bool {
        if matches!(input, InputKind::Link(kind) if *kind == output.kind) && output.choices.is_none() {
            return true;
        }
        *self.fits.entry((address(output), address(input))).or_insert_with(|| types::fits(output, input))
    }
}

impl<'a> Class<'a> {
    fn new(info: &'a NodeInfo) -> Self {
        let hashing = RandomState::new();
        let mut dynamic: HashMap<u64, Vec<&str>> = HashMap::new();
        for input in info.inputs.iter().filter(|input| matches!(input.kind, InputKind::Dynamic(_))) {
            let mut hasher = hashing.build_hasher();
            // In the same pieces in which names are looked up.
            for (n, part) in input.name.split('.').enumerate() {
                if n > 0 {
                    hasher.write(b".");
                }
                hasher.write(part.as_bytes());
            }
            dynamic.entry(hasher.finish()).or_default().push(&input.name);
        }
        let formats = info.inputs.iter().filter_map(|input| input.options.get("formats")?.as_object());
        let lists = formats.flat_map(|formats| formats.values()).filter_map(Value::as_array);
        let formats = lists.flatten().filter_map(|input| input.get(0)?.as_str()).collect();
        // Of doubled names the first counts.
        let inputs = info.inputs.iter().rev().map(|input| (input.name.as_str(), input)).collect();
        Self { inputs, formats, hashing, dynamic }
    }
}

fn names_models(choices: &[Value]) -> bool {
    choices.iter().filter_map(Value::as_str).any(has_model_ending)
}

/// Names and where they stand; of doubled ones the first.
pub(super) enum Lookup<'n> {
    Short(Vec<&'n str>),
    Long(HashMap<&'n str, usize>),
}

impl<'n> Lookup<'n> {
    pub(super) fn new(names: impl ExactSizeIterator<Item = &'n str> + DoubleEndedIterator) -> Self {
        match names.len() <= SHORT {
            true => Self::Short(names.collect()),
            false => Self::Long(names.enumerate().rev().map(|(at, name)| (name, at)).collect()),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        match self {
            Self::Short(names) => names.iter().position(|known| *known == name),
            Self::Long(names) => names.get(name).copied(),
        }
    }
}
