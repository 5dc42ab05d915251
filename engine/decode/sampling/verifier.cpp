#include "engine/decode/sampling/verifier.h"

#include "base/error.h"
#include "engine/rules/chain_rules.h"
#include "engine/rules/tree_rules.h"

namespace specdec::decode {

namespace {

// The Team (rules/team.h) of one thread, which takes its random choices from `randomness`.
class HostTeam {
 public:
  explicit HostTeam(Randomness& randomness) : randomness_(randomness) {}
  template <class F>
  double sum(int n, const F& f) const {
    double total = 0;
    for (int i = 0; i < n; ++i) total += f(i);
    return total;
  }
  template <class F>
  void for_each(int n, const F& f) const {
    for (int i = 0; i < n; ++i) f(i);
  }
  template <class F>
  void once(const F& f) const {
    f();
  }
  bool accept(Purpose purpose, double probability) const { return randomness_.accept(purpose, probability); }
  int32_t draw(Purpose purpose, int n, const float* weights) const {
    return randomness_.draw(purpose, {weights, static_cast<size_t>(n)});
  }
  int32_t draw_at(int64_t position, int n, const float* weights) const {
    return randomness_.draw_at(position, {weights, static_cast<size_t>(n)});
  }
  [[noreturn]] void no_mass(int node, int32_t token) const {
    throw Error(ErrorKind::kInternal, "drafted token " + std::to_string(token) + " of node " + std::to_string(node) +
                                          " has no mass in q (siblings must differ)");
  }

 private:
  Randomness& randomness_;
};

// The Rows (rules/team.h) of a VerifyInput. A row is copied before a rule changes it.
class HostRows {
 public:
  HostRows(const VerifyInput& input, std::vector<float>& scratch) : input_(input), scratch_(scratch) {}
  int count() const { return static_cast<int>(input_.drafted.size()); }
  int vocab() const { return static_cast<int>(input_.p[0].size()); }
  int32_t token(int i) const { return input_.drafted[static_cast<size_t>(i)]; }
  int parent(int i) const { return input_.parents.empty() ? i - 1 : input_.parents[static_cast<size_t>(i)]; }
  const float* p(int i) const { return row(input_.p, changed_p_, i); }
  const float* q(int i) const { return row(input_.q, changed_q_, i); }
  float* mutable_p(int i) { return own(input_.p, changed_p_, i); }
  float* mutable_q(int i) { return own(input_.q, changed_q_, i); }
  float* left() {
    scratch_.resize(static_cast<size_t>(vocab()));
    return scratch_.data();
  }
  double& number(int i) { return numbers_.at(i, count()); }
  int& flags(int i) { return flags_.at(i, count()); }

 private:
  using Rows = std::vector<std::span<const float>>;
  using Own = std::vector<std::vector<float>>;
  static const float* row(const Rows& rows, const Own& own, int i) {
    const auto at = static_cast<size_t>(i);
    return at < own.size() && !own[at].empty() ? own[at].data() : rows[at].data();
  }
  static float* own(const Rows& rows, Own& own, int i) {
    const auto at = static_cast<size_t>(i);
    own.resize(rows.size());
    if (own[at].empty()) own[at].assign(rows[at].begin(), rows[at].end());
    return own[at].data();
  }
  // An array of 2N + 2 values for N drafted tokens, inside this object for N <= kFew, else on the heap.
  template <class T>
  class Room {
   public:
    T& at(int i, int count) {
      if (count <= kFew) return few_[i];
      if (many_.empty()) many_.resize(2 * static_cast<size_t>(count) + 2);
      return many_[static_cast<size_t>(i)];
    }

   private:
    static constexpr int kFew = 64;
    T few_[2 * kFew + 2];
    std::vector<T> many_;
  };
  const VerifyInput& input_;
  std::vector<float>& scratch_;
  Own changed_p_, changed_q_;
  Room<double> numbers_;
  Room<int> flags_;
};

}  // namespace

VerifyResult verify_token(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_token(team, rows);
}

VerifyResult verify_block(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_block(team, rows);
}

VerifyResult verify_recursive(const VerifyInput& input, Randomness& randomness) {
  std::vector<float> scratch;
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_recursive(team, rows);
}

VerifyResult verify_traversal(const VerifyInput& input, Randomness& randomness) {
  std::vector<float> scratch;
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_traversal(team, rows);
}

VerifyResult verify_target(const VerifyInput& input, Randomness& randomness) {
  std::vector<float> scratch;
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_target(team, rows);
}

VerifyResult verify_coupled(const VerifyInput& input, Randomness& randomness) {
  std::vector<float> scratch;
  HostTeam team(randomness);
  HostRows rows(input, scratch);
  return rules::verify_coupled(team, rows, input.position);
}

int32_t next_child(const VerifyInput& input, int32_t node, int32_t from) {
  std::vector<float> scratch;
  return rules::next_child(HostRows(input, scratch), node, from);
}

VerifyResult verify(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  const bool chain = input.parents.empty();
  switch (rule) {
    case VerifyRule::kToken:
      return chain ? verify_token(input, randomness, scratch) : verify_recursive(input, randomness);
    case VerifyRule::kBlock:
      return chain ? verify_block(input, randomness, scratch) : verify_traversal(input, randomness);
    case VerifyRule::kTarget:
      return verify_target(input, randomness);
    case VerifyRule::kCoupled:
      return verify_coupled(input, randomness);
  }
  throw Error(ErrorKind::kInternal, "unknown verification rule");
}

}  // namespace specdec::decode
