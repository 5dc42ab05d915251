// Fuzzes the reader of GGUF files with a file's bytes. The tensors of an accepted file are all inside the file, do not
// overlap, and can be read and dequantised.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/gguf/blocks.h"
#include "base/gguf/gguf_file.h"
#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_gguf.h"

namespace {

using namespace specdec;
using testing::le;
using testing::SampleGguf;

void require(bool ok) {
  if (!ok) std::abort();
}

SampleGguf with_metadata() {
  SampleGguf file;
  file.add_text("general.architecture", "llama");
  file.add_u32("llama.block_count", 2);
  file.add_texts("tokenizer.ggml.tokens", {"<s>", "a"});
  file.add_array<float>("tokenizer.ggml.scores", 6, {0.5f, -1.0f});
  file.add_array<int32_t>("tokenizer.ggml.token_type", 5, {3, 1});
  file.metadata.emplace_back("flag", le<uint32_t>(7) + le<uint8_t>(1));
  file.metadata.emplace_back("wide", le<uint32_t>(12) + le(0.25));
  return file;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const uint32_t version : {2, 3}) {
    SampleGguf file = with_metadata();
    file.version = version;
    file.add_f32("token_embd.weight", {4, 2});
    file.tensors.push_back({"blk.0.attn_q.weight", {32, 2}, 8, std::string(68, 'q'), {}});
    seeds.push_back(file.bytes());
  }
  SampleGguf types;
  types.alignment = 8;
  types.add_u32("general.alignment", 8);
  for (const char* name : {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"}) {
    const gguf::TensorType& type = *gguf::find_type(name);
    types.tensors.push_back({name,
                             {static_cast<uint64_t>(type.block_values)},
                             type.id,
                             std::string(static_cast<size_t>(type.block_bytes), 'b'),
                             {}});
  }
  seeds.push_back(types.bytes());
  SampleGguf split;
  for (const char* key : {"split.no", "split.tensors.count"}) split.add_u32(key, 0);
  split.add_u32("split.count", 1);
  seeds.push_back(split.bytes());
  seeds.push_back(SampleGguf().bytes());
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int memory = ::memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(memory);
  require(::ftruncate(memory, 0) == 0 && ::pwrite(memory, data, size, 0) == static_cast<ssize_t>(size));
  try {
    const gguf::GgufFile file(path);
    uint64_t total = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      require(tensor.offset >= 24 && tensor.offset <= size && tensor.bytes <= size - tensor.offset &&
              tensor.bytes > 0 && tensor.offset % 8 == 0 && tensor.shape.size() <= 4 && tensor.file == 0);
      int64_t values = 1;
      for (int64_t d : tensor.shape) values *= d;
      require(values / tensor.type->block_values * tensor.type->block_bytes == static_cast<int64_t>(tensor.bytes));
      std::vector<std::byte> bytes(tensor.bytes);
      file.read(tensor, 0, bytes);
      std::vector<float> numbers(static_cast<size_t>(values));
      gguf::dequantise(*tensor.type, bytes, numbers);
      total += tensor.bytes;
    }
    require(total <= size && file.header_digest().size() == 64);
    for (const auto make :
         {gguf::make_config, gguf::make_generation_config, gguf::make_tokenizer, gguf::make_tokenizer_config}) {
      try {
        make(file).dump();
      } catch (const Error& e) {
        require(e.kind() == ErrorKind::kModel);
      }
    }
    for (const auto& [name, tensor] : file.tensors()) gguf::place_of(file, name);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kModel);
    const std::string message = e.what();
    require(message.find('\n') == std::string::npos && message.size() < 1000);
  }
  return 0;
}
