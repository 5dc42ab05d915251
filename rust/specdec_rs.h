/* C ABI of the Rust staticlib: Hugging Face tokenizers, grammars (llguidance), Jinja chat templates and Parquet.
 * Every function except sd_*_free returns a status. If it is not SD_OK and the function has a `message` that is not
 * null, *message is filled (one line, UTF-8). Results are written through out-parameters only on SD_OK. The library
 * owns their memory: free them with sd_bytes_free / sd_ids_free. Handles are immutable after creation: const calls on
 * one handle are thread-safe. A Rust panic never crosses this ABI but becomes SD_INTERNAL. If memory runs out inside
 * Rust, the process is aborted, which cannot be reported. */
#ifndef SPECDEC_RS_H
#define SPECDEC_RS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SD_OK = 0,
  SD_INVALID = 1,  /* the file, template, text or id is not valid, or an argument is null */
  SD_RAISED = 2,   /* the template called raise_exception; message is its argument */
  SD_LIMIT = 3,    /* a limit is exceeded: fuel, recursion, output or input size */
  SD_INTERNAL = 4, /* a panic inside Rust */
};

typedef struct {
  uint8_t* data;
  size_t size;
} sd_bytes;
typedef struct {
  uint32_t* data;
  size_t size;
} sd_ids;
void sd_bytes_free(sd_bytes bytes);
void sd_ids_free(sd_ids ids);

/* --- tokenizers --- */
typedef struct sd_tokenizer sd_tokenizer;
/* The ways in which a decoder's text can be streamed (sd_tokenizer_streaming writes one of them). */
enum {
  SD_STREAM_WHOLE = 0,     /* later tokens may change earlier text: decode at the end only */
  SD_STREAM_PREFIX = 1,    /* later tokens only append to the text, except that they may complete a UTF-8 character */
  SD_STREAM_BYTE_RUNS = 2, /* as above, but a run of <0xNN> tokens is settled only when it has ended */
};

/* Makes a tokenizer. `json` holds the bytes of tokenizer.json; padding and truncation stored in it are dropped. `added`
 * is a JSON array of changes to its added tokens: {content, single_word, lstrip, rstrip, normalized, special, known}.
 * They are made in order. A token that the file does not have is added. For a token that it has, `known` decides: if
 * absent, the flags are replaced; "special" only makes the token special; "keep" changes nothing. */
int32_t sd_tokenizer_new(const uint8_t* json, size_t size, const uint8_t* added, size_t added_size, sd_tokenizer** out,
                         sd_bytes* message);
void sd_tokenizer_free(sd_tokenizer* tokenizer);
/* Encodes `text`, which must be UTF-8 of at most 64 MiB. */
int32_t sd_tokenizer_encode(const sd_tokenizer* tokenizer, const uint8_t* text, size_t size, int32_t add_special,
                            sd_ids* out, sd_bytes* message);
/* Decodes ids. Ids that name no token are skipped, as in the Hugging Face library. */
int32_t sd_tokenizer_decode(const sd_tokenizer* tokenizer, const uint32_t* ids, size_t count, int32_t skip_special,
                            sd_bytes* out, sd_bytes* message);
int32_t sd_tokenizer_vocab_size(const sd_tokenizer* tokenizer, uint64_t* out); /* includes added tokens */
int32_t sd_tokenizer_token_to_id(const sd_tokenizer* tokenizer, const uint8_t* token, size_t size,
                                 int64_t* out); /* -1: there is no such token */
/* Returns SD_INVALID if no token has this id. Sets *special to 1 if decode(skip_special) skips it. */
int32_t sd_tokenizer_id_to_token(const sd_tokenizer* tokenizer, uint32_t id, int32_t* special, sd_bytes* out);
/* Writes the bytes that the ids below `size` stand for, one after the other. The bytes of id i end at ends[i]; an id
 * that names no token has no bytes. `special` gets the ids of special tokens in ascending order. `size` is at most
 * 2^22. */
int32_t sd_tokenizer_token_bytes(const sd_tokenizer* tokenizer, size_t size, sd_bytes* out, sd_ids* ends,
                                 sd_ids* special, sd_bytes* message);
int32_t sd_tokenizer_streaming(const sd_tokenizer* tokenizer, int32_t* out);

/* --- grammars --- */
typedef struct sd_vocabulary sd_vocabulary;
typedef struct sd_grammar sd_grammar;
enum { SD_JSON_SCHEMA = 0, SD_REGEX = 1 };
/* Makes a trie of the tokenizer's ids below `size`. `eos` holds the ids that end a text, at least one. */
int32_t sd_vocabulary_new(const sd_tokenizer* tokenizer, size_t size, const uint32_t* eos, size_t num_eos,
                          sd_vocabulary** out, sd_bytes* message);
void sd_vocabulary_free(sd_vocabulary* vocabulary);
/* Compiles `text`, at most 64 KiB of a JSON schema or of a regular expression in Rust's syntax, which the whole answer
 * must match. Returns SD_INVALID if it is malformed or unsupported, exceeds the bounds on work, or if no answer can
 * match it. Returns SD_LIMIT if it is longer, or if objects and arrays nest deeper than 512, with every $ref followed.
 * Nothing here bounds the time and memory that the intersections of a schema take: check an untrusted grammar with
 * sd_grammar_check in a child process first. */
int32_t sd_grammar_new(const sd_vocabulary* vocabulary, int32_t kind, const uint8_t* text, size_t size,
                       sd_grammar** out, sd_bytes* message);
/* Compiles `text` for a vocabulary of single bytes, with half the stack of sd_grammar_new, and frees the result. Writes
 * the number of bytes that the result occupied. This includes memory that other threads allocate meanwhile, so no other
 * thread should be running. */
int32_t sd_grammar_check(int32_t kind, const uint8_t* text, size_t size, size_t* bytes, sd_bytes* message);
int32_t sd_grammar_clone(const sd_grammar* grammar, sd_grammar** out);
void sd_grammar_free(sd_grammar* grammar);
/* These functions use the handle, so only one thread may call them at a time. mask sets bit id % 32 of word
 * id / 32 for each id that may follow. Once the grammar is complete, only the ids that end a text may follow. After a
 * step has exceeded its bound on work, mask fails. push appends an id that the mask allows. pop takes back
 * the last `count` ids. bytes writes about how many bytes the grammar occupies now. */
int32_t sd_grammar_mask(sd_grammar* grammar, uint32_t* words, size_t count);
int32_t sd_grammar_push(sd_grammar* grammar, uint32_t token);
int32_t sd_grammar_pop(sd_grammar* grammar, size_t count);
int32_t sd_grammar_bytes(const sd_grammar* grammar, size_t* bytes);

/* --- chat templates --- */
typedef struct sd_template sd_template;
/* Writes strftime(format, now) into out[0, capacity) and returns its length. A length above capacity means that it did
 * not fit. */
typedef size_t (*sd_strftime)(const char* format, char* out, size_t capacity);
/* Compiles `source`, UTF-8 of at most 1 MiB. Compile an untrusted template in a child process first: a chain of
 * operators can overflow the compiler's stack. */
int32_t sd_template_new(const uint8_t* source, size_t size, sd_strftime clock, sd_template** out, sd_bytes* message);
void sd_template_free(sd_template* chat_template);
/* Renders the template with the variables in `context`, one JSON object. It may execute 1,000,000 instructions and
 * recurse 100 deep. If it fails, *place may be filled: where and of what kind, in the template's own words and without
 * anything of `context`. Free it, too. */
int32_t sd_template_render(const sd_template* chat_template, const uint8_t* context, size_t size, size_t max_output,
                           sd_bytes* out, sd_bytes* message, sd_bytes* place);

/* --- Parquet --- */
/* Receives whole lines and the number of bytes of the file that have been read. A return value other than 0 stops the
 * reading. */
typedef int32_t (*sd_sink)(void* context, const uint8_t* lines, size_t size, uint64_t stored_done);
/* Passes every row of the file at `path` (UTF-8) to the sink as one line of JSON. Lists, structs and maps become arrays
 * and objects, times become ISO 8601, decimals become strings, bytes that are not UTF-8 become base64, and NaN becomes
 * null. Returns SD_LIMIT if the lines are far larger than a file of this size can explain. Needs memory for the pages
 * of one batch of rows, as much as the page headers claim, so run it for untrusted files in a child process with a
 * limit on its address space. */
int32_t sd_parquet_rows(const uint8_t* path, size_t size, sd_sink sink, void* context, sd_bytes* message);

#ifdef __cplusplus
}
#endif
#endif
