/* C ABI of the Rust staticlib: Hugging Face tokenizers, grammars (llguidance), Jinja chat templates and Parquet.
 * Every function returns a status and, where it is not SD_OK, fills *message (one line, UTF-8) if message is not null.
 * Results are written through out-parameters only on SD_OK, and are owned by the library: free them with sd_bytes_free
 * / sd_ids_free. Handles are immutable after creation: const calls on one handle are thread-safe. A Rust panic never
 * crosses the border (SD_INTERNAL); running out of memory inside Rust aborts the process and cannot be reported. */
#ifndef SPECDEC_RS_H
#define SPECDEC_RS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SD_OK = 0,
  SD_INVALID = 1,  /* the file, template, text or id given is not valid */
  SD_RAISED = 2,   /* the template called raise_exception; message is its argument */
  SD_LIMIT = 3,    /* fuel, recursion, output or input size */
  SD_INTERNAL = 4, /* a panic inside Rust, or a null argument */
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
/* How far a decoder lets text be streamed (sd_tokenizer_streaming). */
enum {
  SD_STREAM_WHOLE = 0,     /* later tokens may change earlier text: decode at the end only */
  SD_STREAM_PREFIX = 1,    /* the text of a prefix is a prefix of the text, but for an unfinished UTF-8 character */
  SD_STREAM_BYTE_RUNS = 2, /* as above, but a run of <0xNN> tokens is settled only when it has ended */
};

/* Makes a tokenizer. `json` holds the bytes of tokenizer.json; padding and truncation stored in it are dropped. `added`
 * is a JSON array of changes to its added tokens, which are made in order: {content, single_word, lstrip, rstrip,
 * normalized, special, known}. A token that the file does not have is added. For one that it has, `known` decides:
 * without it the flags are replaced, "special" only makes the token special, "keep" changes nothing. */
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
/* Writes the bytes that the ids below `size` stand for, one after the other. Those of id i end at ends[i]; an id that
 * names no token has none. `special` gets the ids of special tokens in ascending order. `size` is at most 2^22. */
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
 * match it; SD_LIMIT if objects and arrays nest deeper than 512, $refs included. Nothing here bounds the time and
 * memory that the intersections of a schema take: check a foreign grammar with sd_grammar_check in a child process
 * first. */
int32_t sd_grammar_new(const sd_vocabulary* vocabulary, int32_t kind, const uint8_t* text, size_t size,
                       sd_grammar** out, sd_bytes* message);
/* Compiles `text` for a vocabulary of single bytes on half the stack, writes how many bytes the result occupies, and
 * frees it. What other threads allocate meanwhile is counted too, so none should be running. */
int32_t sd_grammar_check(int32_t kind, const uint8_t* text, size_t size, size_t* bytes, sd_bytes* message);
int32_t sd_grammar_clone(const sd_grammar* grammar, sd_grammar** out);
void sd_grammar_free(sd_grammar* grammar);
/* These three change the handle, so only one thread may use it at a time. mask sets bit id % 32 of word id / 32 for
 * each id that may follow: none after a step exceeded its bound on work, and only the ids that end a text once the
 * grammar is complete. push appends an id that the mask allows. pop takes back the last `count` ids. */
int32_t sd_grammar_mask(sd_grammar* grammar, uint32_t* words, size_t count);
int32_t sd_grammar_push(sd_grammar* grammar, uint32_t token);
int32_t sd_grammar_pop(sd_grammar* grammar, size_t count);

/* --- chat templates --- */
typedef struct sd_template sd_template;
/* Writes strftime(format, now) into out[0, capacity) and returns its length; more than capacity means it did not fit.
 */
typedef size_t (*sd_strftime)(const char* format, char* out, size_t capacity);
/* Compiles `source`, UTF-8 of at most 1 MiB. Compile a foreign one in a child process first: chains of operators can
 * overflow the compiler's stack. */
int32_t sd_template_new(const uint8_t* source, size_t size, sd_strftime clock, sd_template** out, sd_bytes* message);
void sd_template_free(sd_template* chat_template);
/* Renders the template with the variables in `context`, one JSON object. It may execute 1,000,000 instructions and
 * recurse 100 deep. */
int32_t sd_template_render(const sd_template* chat_template, const uint8_t* context, size_t size, size_t max_output,
                           sd_bytes* out, sd_bytes* message);

/* --- Parquet --- */
/* Receives whole lines and the number of bytes of the file that have been read. A return value other than 0 stops the
 * reading. */
typedef int32_t (*sd_sink)(void* context, const uint8_t* lines, size_t size, uint64_t stored_done);
/* Passes every row of the file at `path` (UTF-8) to the sink as one line of JSON: lists, structs and maps become arrays
 * and objects, times ISO 8601, decimals strings, bytes that are not UTF-8 base64, and NaN null. Returns SD_LIMIT if
 * there are far more rows than a file of this size can hold. It needs memory for the pages of one batch of rows,
 * however large their headers claim to be: run it in a child process with a limit on its address space. */
int32_t sd_parquet_rows(const uint8_t* path, size_t size, sd_sink sink, void* context, sd_bytes* message);

#ifdef __cplusplus
}
#endif
#endif
