// Fuzzes minisign's files: the input is parsed as a public key, as a signature and as a secret key. Only the right
// signature of the message may verify. A refusal must be one of specdec's own errors.
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/minisign.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/source_folder.h"

namespace {

using namespace specdec;
using fuzz::require;

const std::string& folder() {
  static const std::string path = specdec::source_folder() + "/tests/base/minisign/";
  return path;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"plain.pub", "plain.key", "hashed.minisig", "legacy.minisig"})
    seeds.push_back(read_file(folder() + name));
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<MinisignPublicKey> keys = read_minisign_keys(folder() + "plain.pub");
  static const std::string message = read_file(folder() + "message.txt"),
                           hashed = read_file(folder() + "hashed.minisig"),
                           legacy = read_file(folder() + "legacy.minisig");
  static fuzz::MemoryFile file;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    for (const MinisignPublicKey& key : parse_minisign_keys(text, "fuzz")) require(key.name().size() == 16);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  try {
    const MinisignSignature signature = verify_minisign(message, text, keys, "fuzz");
    const std::string comment = "trusted comment: " + signature.trusted_comment;
    require(signature.signer == keys[0].name() &&
            (hashed.find(comment) != hashed.npos || legacy.find(comment) != legacy.npos));
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  // Skips encrypted secret keys ("EdSc" is "RWRT" in base64), because deriving their key takes seconds and 1 GiB.
  if (text.find("RWRT") != text.npos || size > 4096) return 0;
  try {
    const std::string made = sign_minisign(message, file.hold(text), "", "comment");
    const std::string key = text.substr(text.find('\n') + 1);
    require(!made.empty() && !key.empty());
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kConfig);
  }
  return 0;
}
