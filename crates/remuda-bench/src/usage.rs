//! What processes have used, from `/proc`.

use anyhow::{Context, Result};

/// Linux counts processor time in hundredths of a second on every architecture.
const TICK_US: f64 = 10_000.0;

/// Processor time of this process so far, in microseconds.
pub(crate) fn own_cpu_us() -> Result<f64> {
    Ok(fields("self")?.own)
}

/// Processor time of a process and all its children, living and gone, in microseconds.
pub(crate) fn family_cpu_us(parent: u32) -> Result<f64> {
    let Fields { own, gone } = fields(&parent.to_string())?;
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    // A child that ends while we look is counted by its parent next time.
    let living: f64 =
        children.split_whitespace().filter_map(|id| fields(id).ok()).map(|child| child.own).sum();
    Ok(own + gone + living)
}

struct Fields {
    own: f64,
    /// Of children that have ended.
    gone: f64,
}

fn fields(process: &str) -> Result<Fields> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in parentheses may contain anything, also blanks.
    let (_, rest) = stat.rsplit_once(')').context("/proc/…/stat is not as expected")?;
    let ticks: Vec<f64> =
        rest.split_whitespace().skip(11).take(4).filter_map(|word| word.parse().ok()).collect();
    let [user, system, children_user, children_system] = ticks[..] else {
        anyhow::bail!("/proc/{process}/stat is not as expected")
    };
    Ok(Fields { own: (user + system) * TICK_US, gone: (children_user + children_system) * TICK_US })
}
