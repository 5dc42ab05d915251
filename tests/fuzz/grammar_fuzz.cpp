// Fuzzes JSON schemas and regular expressions from untrusted clients; the first byte chooses one of the two. A grammar
// that the checker process accepts must also compile in this process, and its states can be visited. If the checker
// refuses a grammar or is killed by it, only this grammar gets an error.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/fuzz/byte_tokenizer.h"
#include "text/grammar.h"

namespace {

using namespace specdec;

constexpr ChildLimits kLimits{512u << 20, 2, 8};
constexpr int kSteps = 12;

// Visits states of the grammar deterministically: takes the lowest allowed token at every even step, the highest at
// every odd step.
void walk(const text::Grammar& grammar) {
  const auto matcher = grammar.matcher();
  std::vector<uint32_t> bits((fuzz::kVocab + 31) / 32), again(bits.size());
  for (int step = 0; step < kSteps; ++step) {
    matcher->allowed(bits);
    int32_t chosen = -1;
    for (int32_t id = 0; id < fuzz::kVocab; ++id)
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) && (chosen < 0 || step % 2)) chosen = id;
    if (chosen < 0) return;  // a bound on the work of a step was reached
    matcher->push(chosen);
    matcher->pop(1);
    matcher->allowed(again);
    if (bits != again) std::abort();
    matcher->push(chosen);
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::string chain = R"(s{"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 40; ++i)
    chain += "\"" + std::to_string(i) + R"(":{"anyOf":[{"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"}]},";
  return {R"(s{"type":"object","properties":{"a":{"type":"integer","minimum":0},"b":{"$ref":"#/$defs/b"}},)"
          R"("required":["a"],"additionalProperties":false,"$defs":{"b":{"enum":["x",1,null]}}})",
          R"(s{"allOf":[{"anyOf":[{"type":"string","maxLength":3},{"type":"number"}]},{"$ref":"#/$defs/t"}],)"
          R"("$defs":{"t":{"type":"array","items":{"$ref":"#"},"minItems":1}}})",
          R"(s{"type":"object","patternProperties":{"^[a-c]+$":{"format":"date"}},"minProperties":1,)"
          R"("additionalProperties":{"const":{"k":[1.5,true]}}})",
          chain + R"("40":{"type":"boolean"}}})",
          "r(yes|no)[a-c]{2,5}\\d+(?i:X)?",
          "r((a|b)*c){3,40}[^\\x00-\\x1f]+"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::GrammarChecker checker(kLimits);
  static const text::Vocabulary vocabulary(fuzz::byte_tokenizer(), fuzz::kVocab, {fuzz::kEos});
  if (size < 2) return 0;
  const auto kind =
      data[0] % 2 ? text::GrammarKind::kJsonSchema : text::GrammarKind::kRegex;  // seeds begin with 's' or 'r'
  const std::string source(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    checker.check(kind, source);
    walk(*vocabulary.compile(kind, source));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kData || std::string(e.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
