//! Rust without its words: what is left when comments and literals are blanked out.
//!
//! A rule about code should not trip over a sentence that mentions it. This is no parser; it knows
//! where comments, strings and characters begin and end, and keeps lines where they are.

/// `text` with every comment and literal turned into spaces.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        if let Some(end) = words_end(&chars, at) {
            let blanked = chars[at..end].iter();
            code.extend(blanked.map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(c);
            at += 1;
        }
    }
    code
}

/// Where the comment or literal that begins at `at` ends, if one begins there.
fn words_end(chars: &[char], at: usize) -> Option<usize> {
    let rest = chars.get(at..)?;
    let length = match rest {
        ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        // A lifetime has no closing quote two characters on.
        ['\'', '\\', ..] => quoted(rest, '\''),
        ['\'', _, '\'', ..] => 3,
        ['r' | 'b' | 'c', ..] if at == 0 || !is_word(chars[at - 1]) => raw_string(rest)?,
        _ => return None,
    };
    Some(at + length)
}

fn block_comment(chars: &[char]) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn quoted(chars: &[char], quote: char) -> usize {
    let mut at = 1;
    while let Some(&c) = chars.get(at) {
        at += match c {
            '\\' => 2,
            c if c == quote => return at + 1,
            _ => 1,
        };
    }
    chars.len()
}

/// `r"..."`, `r#"..."#`, `br"..."` and so on; `None` for a name that begins like one.
fn raw_string(chars: &[char]) -> Option<usize> {
    let start = match chars {
        ['r', ..] => 1,
        ['b' | 'c', 'r', ..] => 2,
        _ => return None,
    };
    let hashes = chars[start..].iter().take_while(|&&c| c == '#').count();
    let open = start + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: &usize| {
        chars[*at] == '"' && chars[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    let close = (open + 1..chars.len()).find(closes);
    Some(close.map_or(chars.len(), |at| at + 1 + hashes))
}

/// Whether `c` can be part of a name.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_and_code_stays() {
        let cases = [
            ("a // b\nc", "a c"),
            ("a /* b /* c */ d */ e", "a e"),
            ("a \"b \\\" c\" d", "a d"),
            ("a 'b' '\\'' '\\n' '\"' c", "a c"),
            ("&'a str, 'b'", "&'a str,"),
            ("r\"a\\\" b", "b"),
            ("r#\"a\" b\"# c", "c"),
            ("br\"a\" + b\"c\" d", "+ b d"),
            ("r#type = bar\"a\"", "r#type = bar"),
            ("a \"open\nend", "a"),
            ("a /* open", "a"),
            ("r##\"open\"#", ""),
            ("'", "'"),
        ];
        for (text, expected) in cases {
            let code = code_only(text);
            assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
            assert_eq!(code.chars().count(), text.chars().count(), "{text}");
        }
    }

    #[test]
    fn lines_stay_where_they_are() {
        let own = include_str!("code.rs");
        let code = code_only(own);
        assert_eq!(code.lines().count(), own.lines().count());
        assert_eq!(code.chars().count(), own.chars().count());
        assert!(code.contains("fn lines_stay_where_they_are() {"));
    }
}
