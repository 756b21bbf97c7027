//! Decides whether an SPDX licence expression can be satisfied with the licences we accept.
//!
//! Written by hand because the grammar that occurs in crates is four operators and parentheses; a crate
//! for it would bring the whole licence list and double the time that xtask takes to build.

/// Whether a choice of allowed licences satisfies the expression; an error says why it cannot be read.
///
/// `OR` needs one side, `AND` both; `X WITH Y` is one licence, asked for as that text. The slash of old
/// manifests (`MIT/Apache-2.0`) means `OR`, as crates.io documents it.
pub(super) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut parser = Parser { words: spaced.split_whitespace().peekable(), allowed };
    let verdict = parser.either()?;
    match parser.words.next() {
        None => Ok(verdict),
        Some(word) => Err(format!("unexpected `{word}`")),
    }
}

struct Parser<'a, Words: Iterator<Item = &'a str>> {
    words: std::iter::Peekable<Words>,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a, Words: Iterator<Item = &'a str>> Parser<'a, Words> {
    // Both sides are always parsed, hence `|` and `&` rather than the short-circuiting operators.

    fn either(&mut self) -> Result<bool, String> {
        let mut verdict = self.both()?;
        while self.words.next_if_eq(&"OR").is_some() {
            verdict |= self.both()?;
        }
        Ok(verdict)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut verdict = self.single()?;
        while self.words.next_if_eq(&"AND").is_some() {
            verdict &= self.single()?;
        }
        Ok(verdict)
    }

    fn single(&mut self) -> Result<bool, String> {
        if self.words.next_if_eq(&"(").is_some() {
            let verdict = self.either()?;
            return match self.words.next() {
                Some(")") => Ok(verdict),
                _ => Err("a parenthesis is not closed".to_owned()),
            };
        }
        let licence = self.name()?;
        if self.words.next_if_eq(&"WITH").is_some() {
            let exception = self.name()?;
            return Ok((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allowed)(licence))
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.words.next() {
            None => Err("it ends where a licence should be".to_owned()),
            Some(word @ ("AND" | "OR" | "WITH" | "(" | ")")) => {
                Err(format!("`{word}` where a licence should be"))
            }
            Some(name) => Ok(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn check(expression: &str) -> Result<bool, String> {
        satisfied(expression, &|name| {
            ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].contains(&name)
        })
    }

    #[test]
    fn expressions_are_decided() {
        let cases = [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT AND ISC", true),
            // AND binds more tightly than OR.
            ("MIT OR ISC AND GPL-3.0-only", true),
            ("GPL-3.0-only AND ISC OR MIT", true),
            ("(MIT OR ISC) AND GPL-3.0-only", false),
            ("ISC AND (GPL-2.0-only OR (MIT AND Apache-2.0))", true),
            // An exception is part of the name: neither half alone is enough.
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("GPL-2.0-only WITH Classpath-exception-2.0 OR MIT", true),
            ("GPL-2.0-only/MIT", true),
            ("Apache-2.0 / GPL-2.0-only", true),
            ("LGPL-2.1-or-later/GPL-2.0-only", false),
        ];
        for (expression, expected) in cases {
            assert_eq!(check(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_never_a_yes() {
        for expression in
            ["", "MIT OR", "AND MIT", "(MIT", "MIT)", "MIT ISC", "MIT WITH", "()", "MIT OR OR ISC"]
        {
            assert!(check(expression).is_err(), "{expression}: {:?}", check(expression));
        }
    }
}
