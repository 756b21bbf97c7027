//! The attacker's side of an attack.

use crate::catalogue::Attack;
use crate::stage::Stage;
use anyhow::{Context, Result};

/// Makes one attack, and returns what should not have been possible.
pub async fn attacker(name: &str, stage: Stage) -> Result<Vec<String>> {
    let attack = Attack::named(name).with_context(|| format!("there is no attack {name}"))?;
    (attack.deed)(stage).await
}
