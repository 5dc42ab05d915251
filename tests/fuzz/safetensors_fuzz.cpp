// Fuzzes the safetensors reader with a file's bytes. The tensors of an accepted file are all inside the file, do not
// overlap and can be read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/safetensors.h"

namespace {

using namespace specdec;

void require(bool ok) {
  if (!ok) std::abort();
}

std::string with_length(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {with_length(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
                      "0123456789"),
          with_length(R"({"x":{"dtype":"BOOL","shape":[0,3],"data_offsets":[0,0]}})", ""), with_length("{}", ""),
          std::string("PK\x03\x04zip"), std::string("\x80\x02}q")};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  require(::ftruncate(file, 0) == 0 && ::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  try {
    const SafetensorsFile tensors(path);
    uint64_t total = 0;
    for (const auto& [name, entry] : tensors.tensors()) {
      require(entry.offset >= 8 && entry.offset <= size && entry.bytes <= size - entry.offset &&
              entry.shape.size() <= 8);
      std::vector<std::byte> bytes(entry.bytes);
      tensors.read(entry, bytes);
      total += entry.bytes;
    }
    require(total <= size);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kModel);
  }
  return 0;
}
