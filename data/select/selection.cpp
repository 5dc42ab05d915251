#include "data/select/selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "base/philox.h"

namespace specdec::data {

namespace {

constexpr uint64_t kCapStream = 4, kMixStream = 5;
constexpr double kWhole = 1 + 1e-9;

// Drops rows of `group` at random until `keep` are left; returns how many it dropped.
int64_t thin(std::vector<size_t> group, size_t keep, uint64_t seed, uint64_t stream, std::vector<bool>& kept) {
  if (group.size() <= keep) return 0;
  const auto rank = [&](size_t row) { return std::pair(philox_uniform(seed, stream, row), row); };
  std::nth_element(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(keep), group.end(),
                   [&](size_t a, size_t b) { return rank(a) < rank(b); });
  for (size_t i = keep; i < group.size(); ++i) kept[group[i]] = false;
  return static_cast<int64_t>(group.size() - keep);
}

int64_t cap_tenants(const std::vector<RowTags>& rows, const SelectionOptions& options, std::vector<bool>& kept) {
  std::unordered_map<uint64_t, int64_t> counts;
  for (const RowTags& r : rows)
    if (!r.holdout && r.tenant) ++counts[r.tenant];
  std::unordered_map<uint64_t, std::vector<size_t>> over;
  for (size_t i = 0; i < rows.size(); ++i)
    if (!rows[i].holdout && rows[i].tenant && counts[rows[i].tenant] > options.tenant_cap)
      over[rows[i].tenant].push_back(i);
  int64_t dropped = 0;
  for (auto& [tenant, group] : over)
    dropped += thin(std::move(group), static_cast<size_t>(options.tenant_cap), options.seed, kCapStream, kept);
  return dropped;
}

int64_t mix_domains(const std::vector<RowTags>& rows, const std::vector<std::string>& domains,
                    const SelectionOptions& options, std::vector<bool>& kept) {
  std::vector<std::vector<size_t>> groups(domains.size());
  for (size_t i = 0; i < rows.size(); ++i)
    if (!rows[i].holdout && kept[i]) groups[rows[i].domain].push_back(i);
  double named = 0;
  size_t rest = 0;
  for (const auto& [name, share] : options.mix) named += share;
  for (size_t d = 0; d < domains.size(); ++d)
    if (!options.mix.count(domains[d])) rest += groups[d].size();
  const double left = std::max(0.0, 1 - named) < 1e-9 ? 0 : 1 - named;
  std::vector<double> shares(domains.size());
  double total = INFINITY;  // number of rows of the largest mix that has the wanted shares
  for (size_t d = 0; d < domains.size(); ++d) {
    const auto it = options.mix.find(domains[d]);
    shares[d] = it != options.mix.end() ? it->second
                : rest == 0             ? 0
                                        : left * static_cast<double>(groups[d].size()) / static_cast<double>(rest);
    if (shares[d] > 0) total = std::min(total, static_cast<double>(groups[d].size()) / shares[d]);
  }
  for (const auto& [name, share] : options.mix) {
    const auto at = std::find(domains.begin(), domains.end(), name);
    if (at != domains.end() && !groups[static_cast<size_t>(at - domains.begin())].empty()) continue;
    std::string found;
    for (size_t d = 0; d < domains.size() && found.size() < 200; ++d)
      if (!groups[d].empty())
        found += (found.empty() ? "" : ", ") + (domains[d].empty() ? std::string("(no domain)") : domains[d]);
    throw Error(ErrorKind::kData, "--mix: no training rows of domain '" + name + "' (there are: " + found + ")");
  }
  int64_t dropped = 0;
  for (size_t d = 0; d < domains.size(); ++d)
    dropped += thin(std::move(groups[d]), static_cast<size_t>(std::floor(total * shares[d] + 1e-6)), options.seed,
                    kMixStream, kept);
  return dropped;
}

}  // namespace

std::map<std::string, double> parse_mix(const std::string& text) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, "--mix: expected DOMAIN=SHARE,… with shares over 0 and a sum of at most 1, found '" +
                                       text + "': " + what);
  };
  std::map<std::string, double> mix;
  double sum = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = item.rfind('=');
    if (equals == std::string::npos || equals == 0) fail("no '=' in '" + item + "'");
    char* stop = nullptr;
    const double share = std::strtod(item.c_str() + equals + 1, &stop);
    if (equals + 1 == item.size() || *stop != '\0' || !(share > 0 && share <= 1)) fail("no share in '" + item + "'");
    if (!mix.emplace(item.substr(0, equals), share).second) fail("'" + item.substr(0, equals) + "' twice");
    sum += share;
  }
  if (sum > kWhole) fail("the sum is over 1");
  return mix;
}

Selection select_rows(const std::vector<RowTags>& rows, const std::vector<std::string>& domains,
                      const SelectionOptions& options) {
  Selection selection;
  selection.kept.assign(rows.size(), true);
  if (options.tenant_cap > 0) selection.capped = cap_tenants(rows, options, selection.kept);
  if (!options.mix.empty()) selection.thinned = mix_domains(rows, domains, options, selection.kept);
  return selection;
}

}  // namespace specdec::data
