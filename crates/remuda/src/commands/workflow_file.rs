//! A workflow from a file, with values changed on the command line.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use comfyui::Workflow;

/// `NODE.INPUT=VALUE`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) node: String,
    pub(crate) input: String,
    pub(crate) value: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not NODE.INPUT=VALUE, for example 6.text=\"a fox\"");
        let (place, value) = text.split_once('=').ok_or_else(wrong)?;
        let (node, input) = place.rsplit_once('.').ok_or_else(wrong)?;
        if node.is_empty() || input.is_empty() {
            return Err(wrong());
        }
        Ok(Self { node: node.to_owned(), input: input.to_owned(), value: value.to_owned() })
    }
}

/// What was given cannot be used: the same again will fail again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub(crate) String);

/// What to render.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkflowArgs {
    /// A workflow in ComfyUI's API format ("Export (API)"); - reads it from the standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Change a value in it: JSON, or else text; may be given several times
    #[arg(long = "set", value_name = "NODE.INPUT=VALUE")]
    set: Vec<Assignment>,
    /// Upload a file of this machine for the input of a node; may be given several times
    #[arg(long = "input", value_name = "NODE.INPUT=FILE")]
    pub(crate) inputs: Vec<Assignment>,
}

impl WorkflowArgs {
    /// What to call it.
    pub(crate) fn name(&self) -> String {
        let name = self.file.file_stem().unwrap_or_default().to_string_lossy();
        if name.is_empty() || name == "-" { "workflow".to_owned() } else { name.into_owned() }
    }

    /// Reads it and changes what `--set` says; everything else stays as it is, byte for byte.
    pub(crate) async fn read(&self) -> anyhow::Result<Workflow> {
        let bytes = if self.file.as_os_str() == "-" {
            let mut bytes = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut tokio::io::stdin(), &mut bytes).await?;
            bytes
        } else {
            tokio::fs::read(&self.file)
                .await
                .with_context(|| format!("cannot read {}", self.file.display()))?
        };
        let from = if self.file.as_os_str() == "-" {
            "the standard input".to_owned()
        } else {
            self.file.display().to_string()
        };
        let mut workflow =
            Workflow::parse(bytes).map_err(|error| BadInput(format!("{from} is not a workflow: {error}")))?;
        for change in &self.set {
            let value = serde_json::from_str(&change.value)
                .unwrap_or_else(|_| serde_json::Value::String(change.value.clone()));
            workflow = workflow.with_input(&change.node, &change.input, &value).with_context(|| {
                format!("--set {}.{} does not fit the workflow", change.node, change.input)
            })?;
        }
        Ok(workflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_have_a_node_an_input_and_any_value() {
        let parsed: Assignment = "6.text=a=b.c".parse().unwrap();
        assert_eq!(
            (parsed.node.as_str(), parsed.input.as_str(), parsed.value.as_str()),
            ("6", "text", "a=b.c")
        );
        for wrong in ["6.text", "text=x", ".text=x", "6.=x"] {
            assert!(wrong.parse::<Assignment>().is_err(), "{wrong}");
        }
    }
}
