//! Checks the charsmap of a normalizer of type Precompiled, which the tokenizers library reads without any check. A
//! charsmap is the length of a trie, the trie itself as little-endian u32 (a double array of darts-clone), and the
//! replacements, each ended by NUL.

use serde_json::Value;

use crate::Failure;

/// The tries of published models have less than 1 MiB.
const MAX_TRIE_BYTES: usize = 4 << 20;
const KEY: &str = "precompiled_charsmap";

/// Refuses a normalizer with a charsmap whose look-ups would leave the trie or the replacements. `normalizer` is the
/// JSON of the file, before the library has read it.
pub fn check_charsmaps(normalizer: &Value) -> Result<(), Failure> {
    match normalizer {
        Value::Array(items) => items.iter().try_for_each(check_charsmaps),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match bytes_of(name, value) {
            Some(charsmap) => check(&charsmap).map_err(|why| Failure::invalid(format!("normalizer: {KEY}: {why}"))),
            None => check_charsmaps(value),
        }),
        _ => Ok(()),
    }
}

/// Returns the length in bytes of the longest replacement in the charsmap of a normalizer; 0 if it has none.
pub fn longest_replacement(stage: &Value) -> usize {
    let charsmap = stage.get(KEY).and_then(|value| bytes_of(KEY, value)).unwrap_or_default();
    let texts = split(&charsmap).map_or(&[][..], |(_, texts)| texts);
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// Returns the decoded charsmap. Returns None for text that is not base64; the library refuses such text.
fn bytes_of(name: &str, value: &Value) -> Option<Vec<u8>> {
    base64::decode(value.as_str().filter(|_| name == KEY)?).ok()
}

/// Splits a charsmap into the bytes of the trie and the bytes of the replacements.
fn split(charsmap: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let Some((size, rest)) = charsmap.split_first_chunk::<4>() else {
        return Err(format!("{} bytes, expected at least 4", charsmap.len()));
    };
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || size % 4 != 0 || size > MAX_TRIE_BYTES.min(rest.len()) {
        return Err(format!(
            "a trie of {size} bytes in a charsmap of {}, expected a multiple of 4 from 4 to {MAX_TRIE_BYTES}",
            charsmap.len()
        ));
    }
    Ok(rest.split_at(size))
}

/// Checks every unit of the trie that a look-up can reach.
fn check(charsmap: &[u8]) -> Result<(), String> {
    let (trie, texts) = split(charsmap)?;
    let texts = std::str::from_utf8(texts).map_err(|_| "replacements that are not UTF-8")?;
    let units: Vec<u32> =
        trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
    let mut seen = vec![false; units.len()];
    let mut waiting = vec![0usize];
    while let Some(at) = waiting.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let unit = units[at];
        let offset = ((unit >> 10) as usize) << ((unit & (1 << 9)) >> 6);
        let next = at ^ offset;
        // A look-up reads the unit at `next` for a value, and the units at `next` XOR 1 … 255 for the next byte.
        if next | 0xFF >= units.len() {
            return Err(format!("unit {at} of the trie points outside its {} units", units.len()));
        }
        // The root has no value, because look-ups read a value only after a byte.
        if at != 0 && unit >> 8 & 1 == 1 && !texts.is_char_boundary((units[next] & 0x7FFF_FFFF) as usize) {
            return Err(format!("unit {next} of the trie points outside the {} bytes of replacements", texts.len()));
        }
        waiting.extend(
            (1..=255usize).filter(|byte| units[next ^ byte] & 0x8000_00FF == *byte as u32).map(|byte| next ^ byte),
        );
    }
    Ok(())
}
