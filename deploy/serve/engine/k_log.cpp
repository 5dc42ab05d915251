#include "deploy/serve/engine/k_log.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace specdec::deploy {

namespace {

std::string rate(double tokens) { return format("%.*f", tokens < 100 ? 1 : 0, tokens); }
std::string milliseconds(double seconds) { return format("%.3g ms", 1e3 * seconds); }

}  // namespace

void KLog::chose(std::span<const int> ks) {
  constexpr double kFade = 0.95, kClear = 1.2;  // K prevails if its share is > kClear times that of the K before
  if (ks.empty()) return;
  for (double& share : shares_) share *= kFade;
  for (const int k : ks) {
    if (shares_.size() <= static_cast<size_t>(k)) shares_.resize(static_cast<size_t>(k) + 1);
    shares_[static_cast<size_t>(k)] += 1 / static_cast<double>(ks.size());
  }
  shares_.resize(std::max(shares_.size(), static_cast<size_t>(prevailing_) + 1));
  const auto most = std::max_element(shares_.begin(), shares_.end());
  if (*most > kClear * shares_[static_cast<size_t>(prevailing_)])
    prevailing_ = static_cast<int>(most - shares_.begin());
}

std::optional<std::string> KLog::line(const DepthEvidence& basis, double now) {
  if (basis.k == said_ || (said_ >= 0 && now - said_at_ < kQuiet)) return std::nullopt;
  // The line compares plain decoding with the K that prevails. If K = 0 prevails, it compares plain decoding with the K
  // of the last log line, but at least with K = 2 (or with the largest K allowed, if that is 1).
  const int k = basis.k > 0 ? basis.k : std::max(said_, std::min<int>(2, static_cast<int>(basis.overlaps.size())));
  const double speculative = basis.tokens_per_second(k), plain = basis.tokens_per_second(0);
  if (!std::isfinite(speculative) || !std::isfinite(plain)) return std::nullopt;
  std::string out =
      std::string(basis.assumed_after && basis.k > 0 ? "trying " : "") + "K " +
      (said_ >= 0 ? std::to_string(said_) + " → " : std::string()) + std::to_string(basis.k) + " at batch " +
      std::to_string(basis.batch) + (basis.draft.empty() ? "" : " (draft " + basis.draft + ")") + ": draft " +
      milliseconds(basis.draft_seconds) + "/token, verify " + milliseconds(basis.verify_seconds[0]) + " at K = 0 and " +
      milliseconds(basis.verify_seconds[static_cast<size_t>(k)]) + " at K = " + std::to_string(k) + ", overlap";
  if (basis.assumed_after) out += " assumed";
  for (int i = 0; i < k; ++i) out += format(" %.2f", basis.overlaps[static_cast<size_t>(i)]);
  if (basis.assumed_after)
    out += format(" (%lld drafted token%s seen)", static_cast<long long>(*basis.assumed_after),
                  *basis.assumed_after == 1 ? "" : "s");
  out += (basis.assumed_after ? ", which would give " : ", expected ") + rate(speculative) +
         " tok/s at K = " + std::to_string(k) + " against " + rate(plain) + " plain";
  said_ = basis.k;
  said_at_ = now;
  return out;
}

}  // namespace specdec::deploy
