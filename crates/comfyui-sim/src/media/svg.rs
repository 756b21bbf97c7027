//! SVG.

use super::random::Random;

/// A small drawing whose colours come from the seed, with `title` and `metadata` (JSON text) inside.
///
/// As ComfyUI does, the metadata stand in a CDATA section right after the opening tag; empty ones are left out.
pub fn encode(width: u32, height: u32, title: &str, seed: u64, metadata: &str) -> String {
    let mut random = Random::new(seed);
    let hue = random.below(360);
    let (x, y, radius) = (random.below(100), random.below(100), 15 + random.below(35));
    let metadata = match metadata {
        "" => String::new(),
        // The end of a section cannot stand in it, but it can be cut in two.
        text => format!("  <metadata><![CDATA[{}]]></metadata>\n", text.replace("]]>", "]]]]><![CDATA[>")),
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 100 100\">\n\
         {metadata}  <title>{title}</title>\n  \
         <rect width=\"100\" height=\"100\" fill=\"hsl({hue}, 62%, 36%)\"/>\n  \
         <circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"hsl({}, 62%, 60%)\"/>\n  \
         <text x=\"50\" y=\"54\" font-size=\"8\" text-anchor=\"middle\" fill=\"white\">{seed}</text>\n\
         </svg>\n",
        (hue + 40) % 360,
        title = escape(title),
    )
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Not even escaped may these stand in XML.
            '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}' => {
                out.push('\u{fffd}')
            }
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_break_out() {
        let file = encode(64, 32, "a <b> & \u{1}", 7, "{\"x\": \"]]>\"}");
        assert!(file.contains("<title>a &lt;b&gt; &amp; \u{fffd}</title>"));
        assert!(file.contains("<![CDATA[{\"x\": \"]]]]><![CDATA[>\"}]]></metadata>"));
        assert!(!encode(1, 1, "", 7, "").contains("metadata"));
        assert_ne!(encode(1, 1, "", 7, ""), encode(1, 1, "", 8, ""));
    }
}
