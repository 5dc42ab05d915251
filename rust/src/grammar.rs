//! Computes with llguidance which tokens a grammar (JSON schema, regular expression) allows after a text. Grammars and
//! texts are untrusted: everything that costs time or memory is bounded, and a grammar that exceeds a bound is an
//! error.

use std::sync::{Arc, OnceLock};

use llguidance::api::{StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::{json, Value};

use crate::bounds::make_sound;
use crate::depth::{applies_itself, longest_chain};
use crate::token_bytes::token_bytes;
use crate::tokenizer::HfTokenizer;
use crate::{guard, handle, put, slice, utf8, Bytes, Failure};

const MAX_GRAMMAR_BYTES: usize = 64 << 10;
/// Maximum number of objects and arrays on one chain of a schema, with `$ref`s followed. OpenAI accepts 10 levels of
/// nesting, which make a chain of about 30.
const MAX_CHAIN: usize = 512;
/// llguidance recurses along such a chain and uses about 2 MB of stack at MAX_CHAIN, whatever kinds of schemas are in
/// the chain. A check has half the stack of a compilation, so a grammar that passes a check in another process compiles
/// here.
const COMPILE_STACK_BYTES: usize = 64 << 20;
const CHECK_STACK_BYTES: usize = COMPILE_STACK_BYTES / 2;

/// The trie of a model's tokens; one per model.
pub struct Vocabulary {
    factory: ParserFactory,
}

impl Vocabulary {
    fn new(tokenizer: &HfTokenizer, size: usize, eos: &[u32]) -> Result<Vocabulary, Failure> {
        if eos.is_empty() || eos.iter().any(|&id| id as usize >= size) {
            return Err(Failure::invalid("a grammar needs end-of-text tokens of the vocabulary"));
        }
        let mut table = token_bytes(tokenizer, size)?;
        for &id in table.special.iter().chain(eos) {
            let token = &mut table.tokens[id as usize];
            if token.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                token.insert(0, TokTrie::SPECIAL_TOKEN_MARKER); // marks the token as never part of a text
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, eos[0]), &table.tokens).with_eos_tokens(eos);
        Vocabulary::of(Arc::new(ApproximateTokEnv::new(trie)))
    }

    fn of(env: TokEnv) -> Result<Vocabulary, Failure> {
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| Failure::invalid(e.to_string()))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = 1_000_000; // about 20 ms
        limits.step_lexer_fuel = 100_000; // about 7 ms per mask
        limits.step_max_items = 25_000;
        limits.max_lexer_states = 20_000; // about 40 MB
        limits.max_grammar_size = 100_000;
        limits.verbose_errors = false;
        Ok(Vocabulary { factory })
    }
}

/// White space between two parts of JSON: a space, or a new line and its indentation. The limit keeps a model that
/// favours white space from filling the rest of its answer with it.
const WHITESPACE: &str = r" |\r?\n[ \t]{0,20}";

fn json_schema(text: &str) -> Result<Value, Failure> {
    let mut schema: Value = serde_json::from_str(text).map_err(|e| Failure::invalid(e.to_string()))?;
    let chain = longest_chain(&schema);
    if chain > MAX_CHAIN {
        return Err(Failure::limit(format!(
            "nested {chain} levels deep with its $refs followed, at most {MAX_CHAIN} are taken"
        )));
    }
    if applies_itself(&schema) {
        return Err(Failure::invalid("a $ref leads back to itself, so no text satisfies this grammar"));
    }
    make_sound(&mut schema)?;
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    }
    Ok(schema)
}

/// Runs `work` on a new thread with a stack of `bytes` bytes, because the caller's stack may be too small for the
/// recursion.
fn with_stack<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Failure::limit(format!("no thread with a stack of {bytes} bytes: {e}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A grammar's parser, in its state after some tokens. Once the text has ended, with an end-of-text token or because
/// nothing can follow, further tokens are only counted. After an error (a mask exceeds its bound on work) or a panic
/// the parser is not used any more.
pub struct GrammarMatcher {
    parser: TokenParser,
    failed: bool,
    behind_the_end: usize,
}

impl GrammarMatcher {
    fn compile(vocabulary: &Vocabulary, kind: i32, text: &str) -> Result<GrammarMatcher, Failure> {
        with_stack(COMPILE_STACK_BYTES, || GrammarMatcher::compile_here(vocabulary, kind, text))
    }

    fn compile_here(vocabulary: &Vocabulary, kind: i32, text: &str) -> Result<GrammarMatcher, Failure> {
        if text.len() > MAX_GRAMMAR_BYTES {
            return Err(Failure::limit(format!("{} bytes, at most {MAX_GRAMMAR_BYTES} are taken", text.len())));
        }
        let grammar = match kind {
            0 => TopLevelGrammar::from_json_schema(json_schema(text)?),
            1 => TopLevelGrammar::from_regex(text),
            _ => {
                return Err(Failure::invalid(format!(
                    "grammar kind {kind}, expected 0 (JSON schema) or 1 (regular expression)"
                )))
            }
        };
        let mut parser = vocabulary.factory.create_parser(grammar).map_err(|e| Failure::invalid(e.to_string()))?;
        parser.start_without_prompt();
        let mut matcher = GrammarMatcher { parser, failed: false, behind_the_end: 0 };
        // The first mask does the work that compilation defers; the mask is empty if no text satisfies the grammar.
        match matcher.allowed() {
            Ok(mask) if !mask.is_zero() => Ok(matcher),
            Ok(_) => Err(Failure::invalid("no text satisfies this grammar")),
            Err(error) => Err(error),
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.parser.stop_reason(), StopReason::EndOfSentence | StopReason::NoExtension)
    }

    /// Runs `work` on the parser. After an error or a panic, `failed` stays set and every later call fails.
    fn with_parser<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, Failure> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(Failure::limit("the grammar has failed before"));
        }
        let result = work(&mut self.parser).map_err(Failure::limit)?;
        self.failed = false;
        Ok(result)
    }

    fn allowed(&mut self) -> Result<SimpleVob, Failure> {
        if self.has_ended() && !self.failed {
            return Ok(self.parser.token_env.tok_trie().eos_token_set());
        }
        self.with_parser(|parser| match parser.compute_mask() {
            // The text cannot end here, and no token of the vocabulary continues it.
            Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
                Ok(parser.token_env.tok_trie().alloc_token_set())
            }
            mask => mask.map_err(|e| e.to_string()),
        })
    }

    /// Sets the bits of the tokens that may follow, and clears the others.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        words.fill(0);
        let mask = self.allowed()?;
        let bits = mask.as_slice();
        let count = bits.len().min(words.len());
        words[..count].copy_from_slice(&bits[..count]);
        Ok(())
    }

    fn push(&mut self, token: u32) {
        if self.has_ended() {
            self.behind_the_end += 1;
            return;
        }
        let _ = self.with_parser(|parser| {
            parser.consume_token(token).and_then(|_| parser.check_stop()).map_err(|e| e.to_string())
        });
    }

    fn pop(&mut self, count: usize) {
        let behind = count.min(self.behind_the_end);
        self.behind_the_end -= behind;
        if count > behind {
            let _ = self.with_parser(|parser| parser.rollback(count - behind).map_err(|e| e.to_string()));
        }
    }

    /// Returns roughly how many bytes the parser's tables occupy. They grow with the text.
    fn bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }
}

/// Compiles the grammar with a vocabulary of single bytes and returns the size of the compiled grammar in bytes. This
/// vocabulary is enough for a check, because a model's tokens only make the masks larger.
fn check(kind: i32, text: &str) -> Result<usize, Failure> {
    static BYTES: OnceLock<Option<Vocabulary>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| Vocabulary::of(ApproximateTokEnv::single_byte_env()).ok());
    let bytes = bytes.as_ref().ok_or_else(|| Failure::invalid("the vocabulary of bytes cannot be made"))?;
    with_stack(CHECK_STACK_BYTES, || {
        let before = heap_bytes();
        let matcher = GrammarMatcher::compile_here(bytes, kind, text)?;
        let held = heap_bytes().saturating_sub(before);
        drop(matcher);
        Ok(held)
    })
}

/// The fields of glibc's `struct mallinfo2`, in the same order.
#[repr(C)]
struct MallocInfo {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}
extern "C" {
    fn mallinfo2() -> MallocInfo;
}

/// Returns the number of bytes allocated on the heaps of all threads and in large blocks outside the heaps.
fn heap_bytes() -> usize {
    let info = unsafe { mallinfo2() };
    info.uordblks + info.hblkhd
}

// These types must cross threads: matchers are compiled on one thread and used on another, and several threads may
// clone a compiled matcher.
const _: fn() = || {
    fn crosses_threads<T: Send>() {}
    fn is_shared<T: Sync>() {}
    crosses_threads::<GrammarMatcher>();
    is_shared::<Vocabulary>();
    is_shared::<GrammarMatcher>();
};

#[no_mangle]
pub unsafe extern "C" fn sd_vocabulary_new(
    tokenizer: *const HfTokenizer,
    size: usize,
    eos: *const u32,
    num_eos: usize,
    out: *mut *mut Vocabulary,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let vocabulary = Vocabulary::new(handle(tokenizer)?, size, slice(eos, num_eos)?)?;
        put(out, Box::into_raw(Box::new(vocabulary)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        guard(std::ptr::null_mut(), || {
            drop(Box::from_raw(vocabulary));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_new(
    vocabulary: *const Vocabulary,
    kind: i32,
    text: *const u8,
    size: usize,
    out: *mut *mut GrammarMatcher,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let matcher = GrammarMatcher::compile(handle(vocabulary)?, kind, utf8(slice(text, size)?, "grammar")?)?;
        put(out, Box::into_raw(Box::new(matcher)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_check(
    kind: i32,
    text: *const u8,
    size: usize,
    bytes: *mut usize,
    message: *mut Bytes,
) -> i32 {
    guard(message, || put(bytes, check(kind, utf8(slice(text, size)?, "grammar")?)?))
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_clone(grammar: *const GrammarMatcher, out: *mut *mut GrammarMatcher) -> i32 {
    guard(std::ptr::null_mut(), || {
        let original = handle(grammar)?;
        let copy = GrammarMatcher {
            parser: original.parser.deep_clone(),
            failed: original.failed,
            behind_the_end: original.behind_the_end,
        };
        put(out, Box::into_raw(Box::new(copy)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_free(grammar: *mut GrammarMatcher) {
    if !grammar.is_null() {
        guard(std::ptr::null_mut(), || {
            drop(Box::from_raw(grammar));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_mask(grammar: *mut GrammarMatcher, words: *mut u32, count: usize) -> i32 {
    guard(std::ptr::null_mut(), || {
        let grammar = grammar.as_mut().ok_or_else(|| Failure::invalid("null handle"))?;
        if words.is_null() {
            return Err(Failure::invalid("null mask"));
        }
        grammar.mask(std::slice::from_raw_parts_mut(words, count))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_bytes(grammar: *const GrammarMatcher, bytes: *mut usize) -> i32 {
    guard(std::ptr::null_mut(), || put(bytes, handle(grammar)?.bytes()))
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_push(grammar: *mut GrammarMatcher, token: u32) -> i32 {
    guard(std::ptr::null_mut(), || {
        grammar.as_mut().ok_or_else(|| Failure::invalid("null handle"))?.push(token);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_grammar_pop(grammar: *mut GrammarMatcher, count: usize) -> i32 {
    guard(std::ptr::null_mut(), || {
        grammar.as_mut().ok_or_else(|| Failure::invalid("null handle"))?.pop(count);
        Ok(())
    })
}
