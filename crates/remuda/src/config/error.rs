//! What is wrong with the settings, said so that it can be mended without looking anything up.

use std::fmt;
use std::path::PathBuf;

/// Everything that is wrong with the settings: one run shows all of it.
#[derive(Debug, thiserror::Error)]
pub(crate) struct ConfigError {
    /// At least one, in the order in which a reader would look for them.
    pub(crate) problems: Vec<Problem>,
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The file is not there, or cannot be read.
    #[error("cannot read the settings in {path} (named by {named_by}): {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The flag or variable that names it, or how else it was found.
        named_by: &'static str,
        /// Why.
        reason: String,
    },
    /// A place in the file.
    #[error(transparent)]
    InFile(#[from] InFile),
    /// The value of a flag or of a variable, or two of them together.
    #[error("{at}: {reason}")]
    Value {
        /// The flag or the variable, with its value unless that is secret.
        at: String,
        /// What is wrong and what to write instead.
        reason: String,
    },
}

/// What is wrong at one place of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) struct InFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// Counted from 1.
    pub(crate) line: usize,
    /// In characters, counted from 1.
    pub(crate) column: usize,
    /// What is wrong.
    pub(crate) reason: String,
    /// The line itself, without secrets.
    pub(crate) text: String,
    /// How many characters of it are meant.
    pub(crate) width: usize,
    /// What to do, if that is known.
    pub(crate) hint: Option<String>,
}

impl fmt::Display for InFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, .. } = self;
        writeln!(f, "{}:{line}:{column}: {}", self.path.display(), self.reason)?;
        let margin = line.to_string().len();
        writeln!(f, "{:margin$} |", "")?;
        writeln!(f, "{line} | {}", self.text)?;
        let marks = "^".repeat(self.width.max(1));
        write!(f, "{:margin$} | {:indent$}{marks}", "", "", indent = column - 1)?;
        if let Some(hint) = &self.hint {
            write!(f, " {hint}")?;
        }
        Ok(())
    }
}
