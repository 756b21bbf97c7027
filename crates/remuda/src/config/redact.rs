//! Hiding what nobody should read over a shoulder, in a log or in a bug report.

/// What stands for a secret.
pub(crate) const HIDDEN: &str = "***";

/// Query parameters whose names contain one of these have secret values.
const SECRET_PARAMETERS: &[&str] = &["password", "secret", "token", "key", "signature", "credential"];

/// The text without the passwords of the addresses in it.
pub(crate) fn addresses(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find([' ', ',', '"', '\'']).unwrap_or(after.len());
        // A password may hold a comma or a quote: as long as an `@` follows in the same word, it is not over.
        let end = match after[end..].find('@') {
            Some(more) if !after[end..end + more].contains([' ', '/']) => {
                let from = end + more;
                after[from..].find([' ', ',', '"', '\'']).map_or(after.len(), |length| from + length)
            }
            _ => end,
        };
        let (address, tail) = after.split_at(end);
        let postgres = before.ends_with("postgres://") || before.ends_with("postgresql://");
        out.push_str(&parameters(&user(address, postgres)));
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Hides what stands before the `@` of an address: the password, and a user that may be a token.
fn user(address: &str, keep_bare_name: bool) -> String {
    let authority = address.find(['/', '?', '#']).unwrap_or(address.len());
    let at = match address[..authority].rfind('@') {
        Some(at) => at,
        // A password with a bare slash is a mistake, and still a password.
        None => match address.rfind('@') {
            Some(at) if address[..at].contains(':') && !address[..authority].is_empty() => at,
            _ => return address.to_owned(),
        },
    };
    let (who, host) = address.split_at(at);
    match who.split_once(':') {
        Some((name, _)) => format!("{name}:{HIDDEN}{host}"),
        None if keep_bare_name => address.to_owned(),
        None => format!("{HIDDEN}{host}"),
    }
}

fn parameters(address: &str) -> String {
    let Some((before, query)) = address.split_once('?') else { return address.to_owned() };
    let hidden: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{before}?{}", hidden.join("&"))
}

fn is_secret(parameter: &str) -> bool {
    let parameter = parameter.to_ascii_lowercase();
    SECRET_PARAMETERS.iter().any(|word| parameter.contains(word))
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn passwords_in_addresses_are_hidden_and_the_rest_stays() {
        for (text, shown) in [
            ("postgres://remuda:s3cret@db:5432/remuda", "postgres://remuda:***@db:5432/remuda"),
            ("postgres://remuda@db/remuda", "postgres://remuda@db/remuda"),
            ("postgres://u:p@ss@db/x", "postgres://u:***@db/x"),
            ("postgres://u:pa/ss@db/x", "postgres://u:***@db/x"),
            ("postgres://u:a,b@db/x", "postgres://u:***@db/x"),
            (
                "postgres://db/x?user=u&password=p&sslmode=require",
                "postgres://db/x?user=u&password=***&sslmode=require",
            ),
            ("http://token@gpu:8188", "http://***@gpu:8188"),
            (
                "http://a:x@one:1 gpu=4090, http://b:y@two:2",
                "http://a:***@one:1 gpu=4090, http://b:***@two:2",
            ),
            ("http://one:1,http://b:y@two:2", "http://one:1,http://b:***@two:2"),
            (
                "s3://bucket/prefix?secret_access_key=x&region=eu",
                "s3://bucket/prefix?secret_access_key=***&region=eu",
            ),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
            ("sqlite:remuda.db", "sqlite:remuda.db"),
            ("url = \"http://u:p@h\" # note", "url = \"http://u:***@h\" # note"),
        ] {
            assert_eq!(addresses(text), shown, "{text}");
        }
    }
}
