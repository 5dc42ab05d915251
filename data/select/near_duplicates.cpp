#include "data/select/near_duplicates.h"

#include <algorithm>
#include <bit>

#include "base/cpu_clones.h"
#include "base/error.h"
#include "base/philox.h"

namespace specdec::data {

namespace {

constexpr size_t kBucketSlots = 8;  // one cache line; a key may be in any slot of its bucket
constexpr uint64_t kFamilySeed = 0x5D2026, kFamilyStream = 3;

// The permutations x → a·x + b of 32-bit numbers, where a is odd and x is the upper half of a shingle's hash. Since the
// hash is strong, these permutations are nearly min-wise independent (measured in tests/data/near_duplicates_test.cpp).
struct Family {
  alignas(64) uint32_t a[kMinHashes], b[kMinHashes];
};
const Family& family() {
  static const Family made = [] {
    Family f{};
    PhiloxStream random(kFamilySeed, kFamilyStream);
    for (int i = 0; i < kMinHashes; ++i) {
      f.a[i] = static_cast<uint32_t>(random.below(uint64_t{1} << 31)) * 2 + 1;
      f.b[i] = static_cast<uint32_t>(random.below(uint64_t{1} << 32));
    }
    return f;
  }();
  return made;
}

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64 (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Sets each least[i] to the minimum of its old value and permutation i of every shingle. The compiler vectorises the
// inner loop.
SPECDEC_CLONES("avx2", "default")
void lower_to(uint32_t* __restrict least, const uint64_t* shingle, size_t n, const uint32_t* __restrict a,
              const uint32_t* __restrict b) {
  for (size_t s = 0; s < n; ++s) {
    const auto x = static_cast<uint32_t>(shingle[s] >> 32);
    for (int i = 0; i < kMinHashes; ++i) {
      const uint32_t h = a[i] * x + b[i];
      least[i] = h < least[i] ? h : least[i];
    }
  }
}

}  // namespace

std::vector<uint64_t> word_hashes(std::string_view text) {
  constexpr uint64_t kStart = 0xCBF29CE484222325ull, kPrime = 0x100000001B3ull;  // constants of FNV-1a
  std::vector<uint64_t> words;
  words.reserve(text.size() / 5 + 1);
  uint64_t hash = kStart;
  bool inside = false;
  const auto end_word = [&] {
    if (inside) words.push_back(mix(hash));
    hash = kStart;
    inside = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 'A' && c <= 'Z') c |= 0x20;
    if (c >= 0xE0) {
      end_word();
      for (const size_t stop = std::min(text.size(), i + (c >= 0xF0 ? 4 : 3)); i < stop; ++i)
        hash = (hash ^ static_cast<unsigned char>(text[i])) * kPrime;
      --i;
      inside = true;
      end_word();
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c >= 0x80) {
      hash = (hash ^ c) * kPrime;
      inside = true;
    } else {
      end_word();
    }
  }
  end_word();
  return words;
}

std::vector<uint64_t> shingles(std::string_view text) {
  const std::vector<uint64_t> words = word_hashes(text);
  std::vector<uint64_t> all;
  const size_t n = std::min<size_t>(words.size(), kShingleWords);
  if (n == 0) return all;
  all.reserve(words.size() - n + 1);
  for (size_t i = 0; i + n <= words.size(); ++i) {
    uint64_t hash = n;
    for (size_t j = 0; j < n; ++j) hash = std::rotl(hash, 13) * 5 + words[i + j];
    all.push_back(mix(hash));
  }
  return all;
}

MinHash min_hash(const std::vector<uint64_t>& shingles) {
  MinHash least;
  least.fill(UINT32_MAX);
  lower_to(least.data(), shingles.data(), shingles.size(), family().a, family().b);
  return least;
}

double estimated_similarity(const MinHash& a, const MinHash& b) {
  int equal = 0;
  for (int i = 0; i < kMinHashes; ++i) equal += a[i] == b[i];
  return equal / static_cast<double>(kMinHashes);
}

std::string newest_exchange(const TrafficRecord& record) {
  if (record.messages.empty()) return record.text.empty() ? record.prompt + "\n" + record.response : record.text;
  size_t begin = record.messages.size() - 1;
  while (begin > 0 && record.messages[begin - 1].role != "assistant") --begin;
  std::string text;
  for (size_t i = begin; i < record.messages.size(); ++i)
    text += record.messages[i].content + "\n" + record.messages[i].tool_calls;
  return text;
}

NearDuplicates::NearDuplicates(const std::filesystem::path& directory, double threshold, size_t max_rows)
    : threshold_(threshold),
      max_slots_(std::bit_ceil(max_rows * kBands * 2)),
      signatures_(directory),
      slots_(std::min<size_t>(max_slots_, 1 << 14)) {}

bool NearDuplicates::is_near(const MinHash& signature, uint32_t row) const {
  MinHash other;
  signatures_.read((row - uint64_t{1}) * sizeof other, std::span(reinterpret_cast<char*>(other.data()), sizeof other));
  return estimated_similarity(signature, other) >= threshold_;
}

bool NearDuplicates::seen(std::string_view text) {
  const std::vector<uint64_t> all = shingles(text);
  if (all.empty() || (all.size() == 1 && word_hashes(text).size() < kShingleWords)) return false;
  const MinHash signature = min_hash(all);
  std::array<uint32_t, kBands> keys;
  uint32_t looked_at = 0;  // the row compared last; several hash bands often lead to the same row
  for (int band = 0; band < kBands; ++band) {
    uint64_t hash = static_cast<uint64_t>(band) + 1;
    for (int i = 0; i < kBandRows; ++i)
      hash = mix(hash ^ signature[static_cast<size_t>(band * kBandRows + i)]) + static_cast<uint64_t>(i);
    keys[static_cast<size_t>(band)] = static_cast<uint32_t>(hash >> 32);
    const size_t bucket = keys[static_cast<size_t>(band)] & (slots_.size() - 1) & ~(kBucketSlots - 1);
    for (size_t s = bucket; s < bucket + kBucketSlots; ++s) {
      if (slots_[s].row == 0 || slots_[s].key != keys[static_cast<size_t>(band)] || slots_[s].row == looked_at)
        continue;
      looked_at = slots_[s].row;
      if (is_near(signature, looked_at)) return true;
    }
  }
  if (num_rows_ == UINT32_MAX)
    throw Error(ErrorKind::kData, "near-duplicate search: more than 2^32 rows: use --near-duplicates 0");
  signatures_.append(std::string_view(reinterpret_cast<const char*>(signature.data()), sizeof signature));
  ++num_rows_;
  for (const uint32_t key : keys) remember(key, num_rows_);
  return false;
}

// Stores the row in a free slot of the bucket, or replaces the bucket's oldest row.
void NearDuplicates::remember(uint32_t key, uint32_t row) {
  if (2 * used_ > slots_.size() && slots_.size() < max_slots_) grow();
  const size_t bucket = key & (slots_.size() - 1) & ~(kBucketSlots - 1);
  const auto begin = slots_.begin() + static_cast<std::ptrdiff_t>(bucket);
  const auto oldest =
      std::min_element(begin, begin + kBucketSlots, [](const Slot& x, const Slot& y) { return x.row < y.row; });
  used_ += oldest->row == 0;
  *oldest = {key, row};
}

void NearDuplicates::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  used_ = 0;
  std::erase_if(old, [](const Slot& s) { return s.row == 0; });
  std::sort(old.begin(), old.end(), [](const Slot& x, const Slot& y) { return x.row < y.row; });
  for (const Slot& s : old) remember(s.key, s.row);
}

}  // namespace specdec::data
