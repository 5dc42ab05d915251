#include "deploy/serve/request/token_rules.h"

#include <utility>

namespace specdec::deploy {

namespace {

class GrammarConstraint final : public decode::Constraint {
 public:
  explicit GrammarConstraint(std::unique_ptr<text::GrammarMatcher> matcher) : matcher_(std::move(matcher)) {}
  decode::MaskState allowed(std::span<uint32_t> bits) override {
    return matcher_->allowed(bits) ? decode::MaskState::kReady : decode::MaskState::kSpent;
  }
  void push(int32_t token) override { matcher_->push(token); }
  void pop(int64_t count) override { matcher_->pop(count); }
  size_t bytes() const override { return matcher_->bytes(); }

 private:
  std::unique_ptr<text::GrammarMatcher> matcher_;
};

}  // namespace

std::vector<std::vector<int32_t>> bad_word_tokens(const text::Tokenizer& tokenizer, const std::string& word) {
  const size_t first = word.find_first_not_of(' ');
  const std::string bare = word.substr(first == std::string::npos ? 0 : first);
  std::vector<int32_t> plain = tokenizer.encode(bare, false), spaced = tokenizer.encode(" " + bare, false);
  std::vector<std::vector<int32_t>> out;
  if (plain.empty()) return out;
  const bool other = spaced.size() == plain.size() && spaced.front() != plain.front();
  out.push_back(std::move(plain));
  if (other) out.push_back(std::move(spaced));
  return out;
}

std::function<std::unique_ptr<decode::Constraint>()> constraint_of(std::shared_ptr<const text::Grammar> grammar) {
  return [grammar = std::move(grammar)] { return std::make_unique<GrammarConstraint>(grammar->matcher()); };
}

}  // namespace specdec::deploy
