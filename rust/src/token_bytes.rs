//! Computes the bytes that each token of a vocabulary stands for, even if they are not whole characters. Grammars and
//! log-probabilities need these bytes.

use std::collections::HashMap;

use serde_json::Value;

use crate::tokenizer::HfTokenizer;
use crate::{guard, handle, leak, put, Bytes, Failure, Ids};

/// The rules by which a decoder turns the text of one token into bytes, taken from the decoder's JSON.
#[derive(Default)]
struct Spelling {
    byte_level: bool,
    byte_fallback: bool,
    replacements: Vec<(String, String)>,
    continuation: Option<String>,
}

impl Spelling {
    fn read(&mut self, decoder: &Value) {
        let text = |key: &str| decoder.get(key).and_then(Value::as_str).map(str::to_string);
        match decoder.get("type").and_then(Value::as_str) {
            Some("Sequence") => {
                decoder.get("decoders").and_then(Value::as_array).into_iter().flatten().for_each(|part| self.read(part))
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Metaspace") => {
                self.replacements.push((text("replacement").unwrap_or_else(|| "\u{2581}".into()), " ".into()))
            }
            Some("Replace") => {
                if let (Some(from), Some(to)) =
                    (decoder.pointer("/pattern/String").and_then(Value::as_str), text("content"))
                {
                    self.replacements.push((from.into(), to));
                }
            }
            Some("WordPiece") => self.continuation = text("prefix"),
            Some("BPEDecoder") => self.replacements.extend(text("suffix").map(|suffix| (suffix, " ".into()))),
            _ => {}
        }
    }

    fn bytes(&self, token: &str, stand_ins: &HashMap<char, u8>) -> Vec<u8> {
        if self.byte_level {
            let mapped: Option<Vec<u8>> = token.chars().map(|c| stand_ins.get(&c).copied()).collect();
            return mapped.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        if self.byte_fallback && token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
            if let Ok(byte) = u8::from_str_radix(&token[3..5], 16) {
                return vec![byte];
            }
        }
        let mut text = token.to_string();
        if let Some(prefix) = &self.continuation {
            text = text.strip_prefix(prefix.as_str()).map_or_else(|| format!(" {text}"), str::to_string);
        }
        for (from, to) in &self.replacements {
            text = text.replace(from.as_str(), to);
        }
        text.into_bytes()
    }
}

/// Maps GPT-2's printable stand-ins to the 256 bytes: a printable Latin-1 byte is its own stand-in, and the other bytes
/// have the characters from U+0100 on.
fn byte_stand_ins() -> HashMap<char, u8> {
    let mut next = 256u32;
    let mut of = |byte: u8| {
        if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("below the surrogates")
    };
    (0..=255u8).map(|byte| (of(byte), byte)).collect()
}

pub struct TokenBytes {
    /// Indexed by token id; empty if the id names no token.
    pub tokens: Vec<Vec<u8>>,
    pub special: Vec<u32>,
}

/// Returns the bytes of the ids below `size`. Added tokens stand for their own text.
pub fn token_bytes(tokenizer: &HfTokenizer, size: usize) -> Result<TokenBytes, Failure> {
    let decoder = serde_json::to_value(tokenizer.inner.get_decoder()).map_err(|e| Failure::invalid(e.to_string()))?;
    let mut spelling = Spelling::default();
    spelling.read(&decoder);
    let stand_ins = byte_stand_ins();
    let added = tokenizer.inner.get_added_tokens_decoder();
    let mut out = TokenBytes { tokens: Vec::with_capacity(size), special: Vec::new() };
    for id in 0..size as u32 {
        let bytes = match (added.get(&id), tokenizer.inner.id_to_token(id)) {
            (Some(token), _) => {
                if token.special {
                    out.special.push(id);
                }
                token.content.clone().into_bytes()
            }
            (None, Some(token)) => spelling.bytes(&token, &stand_ins),
            (None, None) => Vec::new(),
        };
        out.tokens.push(bytes);
    }
    Ok(out)
}

/// Largest `size` accepted, about twenty times the largest known vocabulary.
const MAX_IDS: usize = 1 << 22;

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_token_bytes(
    tokenizer: *const HfTokenizer,
    size: usize,
    out: *mut Bytes,
    ends: *mut Ids,
    special: *mut Ids,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        if size > MAX_IDS {
            return Err(Failure::limit(format!("{size} token ids, at most {MAX_IDS} are taken")));
        }
        let table = token_bytes(handle(tokenizer)?, size)?;
        let mut joined = Vec::new();
        let mut offsets = Vec::with_capacity(size);
        for token in &table.tokens {
            joined.extend_from_slice(token);
            offsets
                .push(u32::try_from(joined.len()).map_err(|_| Failure::limit("the vocabulary's text is over 4 GiB"))?);
        }
        let (data, size) = leak(joined);
        put(out, Bytes { data, size })?;
        let (data, size) = leak(offsets);
        put(ends, Ids { data, size })?;
        let (data, size) = leak(table.special);
        put(special, Ids { data, size })
    })
}
