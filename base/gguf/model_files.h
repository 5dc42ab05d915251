// Gives a GGUF file the form of a Hugging Face model directory, which every command reads: config.json,
// generation_config.json, tokenizer.json, tokenizer_config.json (with the chat template), and links to the file. All
// but the links are made from the file's metadata.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/gguf/gguf_file.h"
#include "base/json.h"

namespace specdec::gguf {

// Returns the config.json that describes the model: keys and names of Hugging Face's config of this family, as
// engine/config/config.h parses it, with "quantization_config": {"quant_method": "gguf", "header": header_digest(),
// "bytes": (those of all tensors in memory, with matrices in blocks)}. Throws Error(kModel) for an architecture
// (general.architecture) that specdec does not run, naming those that it does.
Json make_config(const GgufFile& file);
// Returns generation_config.json with the ids that end an answer (EOS, EOT, EOM).
Json make_generation_config(const GgufFile& file);
// Returns tokenizer.json (Hugging Face tokenizers) for the tokenizer in the file, which gives the same ids as
// llama.cpp.
Json make_tokenizer(const GgufFile& file);
// Returns tokenizer_config.json: special tokens, add_bos_token, and the chat template if the file has one.
Json make_tokenizer_config(const GgufFile& file);

// How a tensor of the file becomes a parameter of the decoder.
struct Place {
  std::string name;  // the parameter's Hugging Face name, such as "model.layers.0.self_attn.q_proj.weight"
  // The rows of queries or keys of `heads` heads are permuted, as llama.cpp's converter does for Llama: file row
  // h·D + 2·i + s holds the parameter's row h·D + s·D/2 + i. 0: the rows keep their order.
  int64_t permuted_heads = 0;
  double minus = 0;  // subtracted from every value: 1 for Gemma's norms, which files store as 1 + weight
};
// Returns the place of a tensor, or nothing if the decoder has no such parameter (rope_freqs.weight). Throws
// Error(kModel) for the name of a tensor that the architecture does not have.
std::optional<Place> place_of(const GgufFile& file, const std::string& tensor);

// A tensor and its place.
struct Placed {
  const Tensor* tensor;
  Place place;
};

// Returns the GGUF file that a model directory holds, model.gguf or model-00001-of-<n>.gguf; "" if there is none.
std::filesystem::path file_in(const std::filesystem::path& directory);
// Throws Error(kModel) if the directory's config.json was not made from this file: its quantization_config names
// another header digest.
void require_config_of(const GgufFile& file, const std::filesystem::path& directory);

// Returns the real path of a .gguf file. If the real file has another ending, as in the hub's cache, whose files are
// links to blobs, only the folder is resolved. Throws Error(kModel) if there is no such file.
std::filesystem::path real_file(const std::filesystem::path& gguf);

// Returns a directory with the files above for a .gguf file, and links model.gguf (or model-00001-of-0000N.gguf, …) to
// the file and its splits. The directory lies in the cache ($XDG_CACHE_HOME/specdec/gguf) under a name that depends on
// the file's path, size, times of change and inode, so a file that has changed gets another directory; it is published
// whole, and an existing one is used as it is. Throws the errors of GgufFile and of the functions above, and Error(kIo)
// if the cache cannot be written.
std::filesystem::path model_directory_of(const std::filesystem::path& gguf);

}  // namespace specdec::gguf
