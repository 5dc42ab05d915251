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

/* json: the bytes of tokenizer.json. Padding and truncation stored in it are dropped. added: a JSON array of changes to
 * its added tokens, in order, {content, single_word, lstrip, rstrip, normalized, special, known}: a token that it does
 * not have is added; of one that it has the flags are replaced (known absent), only made special ("special"), or left
 * ("keep"). */
int32_t sd_tokenizer_new(const uint8_t* json, size_t size, const uint8_t* added, size_t added_size, sd_tokenizer** out,
                         sd_bytes* message);
void sd_tokenizer_free(sd_tokenizer* tokenizer);
/* text must be UTF-8 of at most 64 MiB. */
int32_t sd_tokenizer_encode(const sd_tokenizer* tokenizer, const uint8_t* text, size_t size, int32_t add_special,
                            sd_ids* out, sd_bytes* message);
/* Ids that name no token are skipped, as the Hugging Face library does. */
int32_t sd_tokenizer_decode(const sd_tokenizer* tokenizer, const uint32_t* ids, size_t count, int32_t skip_special,
                            sd_bytes* out, sd_bytes* message);
int32_t sd_tokenizer_vocab_size(const sd_tokenizer* tokenizer, uint64_t* out); /* with added tokens */
int32_t sd_tokenizer_token_to_id(const sd_tokenizer* tokenizer, const uint8_t* token, size_t size,
                                 int64_t* out); /* -1 absent */
/* SD_INVALID if no token has this id. *special: skipped by decode(skip_special). */
int32_t sd_tokenizer_id_to_token(const sd_tokenizer* tokenizer, uint32_t id, int32_t* special, sd_bytes* out);
/* The bytes that each id below size stands for, joined: those of id i end at ends[i]; none for ids that name no token.
 * special: ids of special tokens, rising. At most 2^22 ids. */
int32_t sd_tokenizer_token_bytes(const sd_tokenizer* tokenizer, size_t size, sd_bytes* out, sd_ids* ends,
                                 sd_ids* special, sd_bytes* message);
int32_t sd_tokenizer_streaming(const sd_tokenizer* tokenizer, int32_t* out);

/* --- grammars --- */
typedef struct sd_vocabulary sd_vocabulary;
typedef struct sd_grammar sd_grammar;
enum { SD_JSON_SCHEMA = 0, SD_REGEX = 1 };
/* The ids below size of a tokenizer, as a trie; eos: the ids that end a text, at least one. */
int32_t sd_vocabulary_new(const sd_tokenizer* tokenizer, size_t size, const uint32_t* eos, size_t num_eos,
                          sd_vocabulary** out, sd_bytes* message);
void sd_vocabulary_free(sd_vocabulary* vocabulary);
/* text: at most 64 KiB of a JSON schema or a regular expression in Rust's syntax, for the whole text. SD_INVALID where
 * it is malformed, asks for what is not supported, is over the bounds on work, or where no text satisfies it; SD_LIMIT
 * where it is nested deeper than 512 objects and arrays, $refs followed. The time and memory that the intersections of
 * a schema take have no bound in here: a foreign grammar must have survived sd_grammar_check in a child process. */
int32_t sd_grammar_new(const sd_vocabulary* vocabulary, int32_t kind, const uint8_t* text, size_t size,
                       sd_grammar** out, sd_bytes* message);
/* Compiles text for a vocabulary of bytes, on half the stack, counts the bytes that it holds and lets go of it. Other
 * threads must not allocate meanwhile, or they are counted too. */
int32_t sd_grammar_check(int32_t kind, const uint8_t* text, size_t size, size_t* bytes, sd_bytes* message);
int32_t sd_grammar_clone(const sd_grammar* grammar, sd_grammar** out);
void sd_grammar_free(sd_grammar* grammar);
/* These three change the handle: one thread at a time. Bit id % 32 of word id / 32: id may follow. Nothing may after a
 * bound on the work of one step was hit, and only the ids that end a text once it has ended. push: of an allowed id.
 * pop: takes back the last count. */
int32_t sd_grammar_mask(sd_grammar* grammar, uint32_t* words, size_t count);
int32_t sd_grammar_push(sd_grammar* grammar, uint32_t token);
int32_t sd_grammar_pop(sd_grammar* grammar, size_t count);

/* --- chat templates --- */
typedef struct sd_template sd_template;
/* Writes strftime(format, now) into out[0, capacity) and returns its length; more than capacity means it did not fit.
 */
typedef size_t (*sd_strftime)(const char* format, char* out, size_t capacity);
/* source: UTF-8 of at most 1 MiB. A foreign one must have survived a compilation in a child process: chains of
 * operators can overflow the compiler's stack. */
int32_t sd_template_new(const uint8_t* source, size_t size, sd_strftime clock, sd_template** out, sd_bytes* message);
void sd_template_free(sd_template* chat_template);
/* context: one JSON object, the variables of the template. Fuel 1,000,000 instructions, recursion 100. */
int32_t sd_template_render(const sd_template* chat_template, const uint8_t* context, size_t size, size_t max_output,
                           sd_bytes* out, sd_bytes* message);

/* --- Parquet --- */
/* Takes whole lines, and how many bytes of the file are behind the reader. Not 0: no more, please. */
typedef int32_t (*sd_sink)(void* context, const uint8_t* lines, size_t size, uint64_t stored_done);
/* Every row of the file at `path` (UTF-8) as one line of JSON: lists, structs and maps as arrays and objects, times as
 * ISO 8601, decimals as strings, bytes that are no UTF-8 as base64, NaN as null. SD_LIMIT: far more rows than a file of
 * this size may hold. Memory: the pages of a batch of rows, whatever their headers claim; run it in a child process
 * with an address-space limit. */
int32_t sd_parquet_rows(const uint8_t* path, size_t size, sd_sink sink, void* context, sd_bytes* message);

#ifdef __cplusplus
}
#endif
#endif
