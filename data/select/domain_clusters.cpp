#include "data/select/domain_clusters.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "data/select/near_duplicates.h"

namespace specdec::data {

namespace {

constexpr size_t kSampleRows = 8192;
constexpr int kRounds = 25;
constexpr uint64_t kSampleStream = 6, kSeedingStream = 7;

template <class Vector>
float product(const Vector& a, const Vector& b) {
  float sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <class Vector>
void normalise(Vector& v) {
  const float length = std::sqrt(product(v, v));
  if (length > 0)
    for (float& x : v) x /= length;
}

template <class Vector>
size_t nearest(const Vector& v, const std::vector<Vector>& centres) {
  size_t best = 0;
  float most = -2;
  for (size_t c = 0; c < centres.size(); ++c)
    if (const float p = product(v, centres[c]); p > most) most = p, best = c;
  return best;
}

std::string clustered_text(const TrafficRecord& record) {
  if (record.messages.empty()) return record.prompt.empty() ? record.text + record.response : record.prompt;
  std::string text;
  for (size_t i = record.messages.size() - 1; i > 0 && record.messages[i - 1].role != "assistant"; --i)
    if (record.messages[i - 1].role == "user") text += record.messages[i - 1].content + "\n";
  return text.empty() ? record.messages.back().content : text;
}

}  // namespace

DomainClusters::DomainClusters(const std::filesystem::path& directory, int clusters, uint64_t seed)
    : wanted_(static_cast<size_t>(clusters)), seed_(seed), features_(directory) {}

void DomainClusters::add(const TrafficRecord& record) {
  WordCounts counts{};
  for (const uint64_t word : word_hashes(clustered_text(record))) {
    uint8_t& n = counts[word % kWordBuckets];
    n = static_cast<uint8_t>(std::min(n + 1, 255));
  }
  features_.append(std::string_view(reinterpret_cast<const char*>(counts.data()), counts.size()));
  ++num_rows_;
}

WordCounts DomainClusters::row(size_t index) const {
  WordCounts counts;
  features_.read(index * counts.size(), std::span(reinterpret_cast<char*>(counts.data()), counts.size()));
  return counts;
}

void DomainClusters::weigh(const std::vector<WordCounts>& sample) {
  for (size_t b = 0; b < kWordBuckets; ++b) {
    const auto rows = std::count_if(sample.begin(), sample.end(), [b](const WordCounts& c) { return c[b] > 0; });
    weights_[b] =
        static_cast<float>(std::log((1.0 + static_cast<double>(sample.size())) / (1.0 + static_cast<double>(rows))));
  }
}

DomainClusters::Vector DomainClusters::weighted(const WordCounts& counts) const {
  Vector v;
  for (size_t b = 0; b < kWordBuckets; ++b) v[b] = std::log1p(static_cast<float>(counts[b])) * weights_[b];
  normalise(v);
  return v;
}

std::vector<DomainClusters::Vector> DomainClusters::centres_of(const std::vector<Vector>& sample) const {
  PhiloxStream random(seed_, kSeedingStream);
  std::vector<Vector> centres = {sample[random.below(sample.size())]};
  std::vector<double> distance(sample.size(), 2);
  while (centres.size() < wanted_) {
    for (size_t i = 0; i < sample.size(); ++i)
      distance[i] = std::min(distance[i], std::max(0.0, 1 - static_cast<double>(product(sample[i], centres.back()))));
    double at = random.uniform() * std::accumulate(distance.begin(), distance.end(), 0.0);
    size_t chosen = 0;
    while (chosen + 1 < sample.size() && (at -= distance[chosen]) > 0) ++chosen;
    if (distance[chosen] < 1e-6) break;  // every row is a centre already
    centres.push_back(sample[chosen]);
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Vector> sums(centres.size(), Vector{});
    for (const Vector& v : sample) {
      Vector& sum = sums[nearest(v, centres)];
      for (size_t b = 0; b < kWordBuckets; ++b) sum[b] += v[b];
    }
    for (size_t c = 0; c < centres.size(); ++c) {
      normalise(sums[c]);
      if (product(sums[c], sums[c]) > 0) centres[c] = sums[c];
    }
  }
  return centres;
}

std::vector<uint8_t> DomainClusters::assign() {
  if (num_rows_ == 0) return {};
  // Samples each row with the same probability. The sample keeps the order of the log.
  const double share = static_cast<double>(kSampleRows) / static_cast<double>(num_rows_);
  std::vector<WordCounts> sampled;
  for (size_t i = 0; i < num_rows_; ++i)
    if (share >= 1 || philox_uniform(seed_, kSampleStream, i) < share) sampled.push_back(row(i));
  if (sampled.empty()) sampled.push_back(row(0));
  weigh(sampled);
  std::vector<Vector> sample;
  for (const WordCounts& counts : sampled) sample.push_back(weighted(counts));
  const std::vector<Vector> centres = centres_of(sample);
  std::vector<uint8_t> found(num_rows_);
  std::vector<size_t> rows_of(centres.size()), order(centres.size()), rank(centres.size());
  for (size_t i = 0; i < num_rows_; ++i) {
    found[i] = static_cast<uint8_t>(nearest(weighted(row(i)), centres));
    ++rows_of[found[i]];
  }
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows_of[a] > rows_of[b]; });
  for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  for (uint8_t& c : found) c = static_cast<uint8_t>(rank[c]);
  return found;
}

}  // namespace specdec::data
