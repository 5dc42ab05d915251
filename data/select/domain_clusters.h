// Assigns domains to traffic without tags by grouping prompts by their words (spherical k-means over hashed words:
// Dhillon and Modha, "Concept Decompositions for Large Sparse Text Data Using Clustering", 2001; seeding by Arthur and
// Vassilvitskii, "k-means++", 2007).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/schema/traffic_record.h"
#include "data/select/scratch_file.h"

namespace specdec::data {

inline constexpr int kMaxDomainClusters = 64;
inline constexpr int kWordBuckets = 256;
using WordCounts = std::array<uint8_t, kWordBuckets>;  // counts of a text's words by hash bucket, capped at 255

class DomainClusters {
 public:
  // Keeps the features of the rows in a scratch file in `directory`. In memory there is one sample of about 8,192 rows
  // (8 MiB), whatever the number of rows.
  DomainClusters(const std::filesystem::path& directory, int clusters, uint64_t seed);

  // Adds the next row. Its features are the words of the prompt of its last answer; without a prompt, those of its text
  // or of the last message of a chat.
  void add(const TrafficRecord& record);
  size_t size() const { return num_rows_; }

  // Returns the cluster of each row; cluster 0 has the most rows. Gives fewer clusters than requested if there are
  // fewer distinct rows. The same rows in the same order give the same clusters. Call once.
  std::vector<uint8_t> assign();

  static std::string name(uint8_t cluster) { return "cluster-" + std::to_string(cluster + 1); }

 private:
  using Vector = std::array<float, kWordBuckets>;
  Vector weighted(const WordCounts& counts) const;
  WordCounts row(size_t index) const;
  void weigh(const std::vector<WordCounts>& sample);
  std::vector<Vector> centres_of(const std::vector<Vector>& sample) const;

  size_t wanted_;
  uint64_t seed_;
  ScratchFile features_;
  size_t num_rows_ = 0;
  Vector weights_{};  // inverse document frequency of each hash bucket
};

}  // namespace specdec::data
