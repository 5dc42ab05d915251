// Writes the logits of a model for given tokens.
//
// Usage: teacher_forced MODEL DTYPE TOKENS OUT. TOKENS is a JSON list of lists of token ids. OUT receives fp32 logits
// [tokens, vocabulary] of one text after the other, each text in one pass. DTYPE is a value of --dtype.
#include <cstdio>
#include <exception>

#include "base/file.h"
#include "base/json.h"
#include "base/model_directory.h"
#include "engine/forward/forward.h"

int main(int argc, char** argv) {
  using namespace specdec;
  if (argc != 5) {
    std::fputs("usage: teacher_forced MODEL DTYPE TOKENS OUT\n", stderr);
    return 1;
  }
  try {
    const auto directory = resolve_model(argv[1]).directory;
    const auto config = model::load_decoder_config(directory);
    const auto decoder = model::load_for_decoding(
        directory, at::kCPU, model::resolve_decoding_dtype(argv[2], config, at::kCPU), model::Role::kTarget);
    OutputFile out(argv[4]);
    for (const Json& text : read_json(argv[3])) {
      const auto tokens = text.get<std::vector<int32_t>>();
      model::KvCache cache(decoder->config, at::kCPU, decoder->weights.embed.scalar_type());
      const model::SequencePart part = {
          .cache = &cache, .tokens = tokens, .num_logits = static_cast<int64_t>(tokens.size())};
      const at::Tensor logits = model::forward(*decoder, {&part, 1}).contiguous();
      out.write({static_cast<const char*>(logits.const_data_ptr()), logits.nbytes()});
    }
    out.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "teacher_forced: %s\n", error.what());
    return 2;
  }
}
