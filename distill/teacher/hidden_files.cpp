#include "distill/teacher/hidden_files.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "base/small_float.h"

namespace specdec::distill {

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24, kMostStates = 1024, kCheckedValues = int64_t{1} << 20;
constexpr int64_t kNormSample = 16;  // number of tokens per file that passed_norm() looks at

[[noreturn]] void refuse_file(const fs::path& file, const std::string& what) {
  throw Error(ErrorKind::kData, file.string() + ": " + what);
}

std::string shape_text(const TensorEntry& entry) {
  std::string out = entry.dtype + " [";
  for (size_t i = 0; i < entry.shape.size(); ++i) out += (i ? ", " : "") + std::to_string(entry.shape[i]);
  return out + "]";
}

const TensorEntry& entry_of(const SafetensorsFile& file, const char* name) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end())
    refuse_file(file.file().path(),
                std::string("tensor ") + name + " is missing: expected token_ids and hidden_states");
  return it->second;
}

std::vector<int64_t> read_tokens(const SafetensorsFile& file) {
  const TensorEntry& entry = entry_of(file, "token_ids");
  if (entry.dtype != "I64" || entry.shape.size() != 1 || entry.shape[0] > kMostTokens)
    refuse_file(file.file().path(), "token_ids: expected I64 [tokens] with at most " + std::to_string(kMostTokens) +
                                        " tokens, found " + shape_text(entry));
  std::vector<int64_t> tokens(static_cast<size_t>(entry.shape[0]));
  file.read(entry, std::as_writable_bytes(std::span(tokens)));
  return tokens;
}

HiddenFile describe_file(const SafetensorsFile& file, int64_t tokens, int64_t hidden_size) {
  const TensorEntry& entry = entry_of(file, "hidden_states");
  const bool known = entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16";
  if (!known || entry.shape.size() != 3 || entry.shape[0] != tokens || entry.shape[1] < 1 ||
      entry.shape[1] > kMostStates || entry.shape[2] != hidden_size)
    refuse_file(file.file().path(), "hidden_states: expected F32, BF16 or F16 [" + std::to_string(tokens) +
                                        ", layers, " + std::to_string(hidden_size) +
                                        "] (the file's tokens and the target's hidden size), found " +
                                        shape_text(entry));
  return {file.file().path(), entry.dtype, entry.offset, tokens, entry.shape[1], false};
}

void read_last(const InputFile& in, const HiddenFile& file, int64_t hidden_size, int64_t begin, int64_t end,
               float* out) {
  const uint64_t width = file.dtype == "F32" ? 4 : 2, vector = width * static_cast<uint64_t>(hidden_size);
  const uint64_t stride = vector * static_cast<uint64_t>(file.states);
  // If the file has one state per token, reads all tokens in one call. Otherwise the last states of the tokens are not
  // adjacent, and each is read by a call of its own.
  const int64_t at_once = file.states == 1 ? end - begin : 1;
  std::vector<std::byte> bytes(static_cast<size_t>(at_once) * vector);
  for (int64_t t = begin; t < end; t += at_once) {
    in.read(file.offset + static_cast<uint64_t>(t) * stride + (stride - vector), bytes);
    const auto count = static_cast<size_t>(at_once * hidden_size);
    float* to = out + (t - begin) * hidden_size;
    if (file.dtype == "F32") {
      std::copy_n(reinterpret_cast<const float*>(bytes.data()), count, to);
      continue;
    }
    const auto* from = reinterpret_cast<const uint16_t*>(bytes.data());
    for (size_t i = 0; i < count; ++i) to[i] = file.dtype == "BF16" ? bf16_to_float(from[i]) : fp16_to_float(from[i]);
  }
}

// Returns whether a state is an output of the final norm. Such a state, divided by the norm's weights, has a root mean
// square of 1. States before the norm have another root mean square at nearly every token.
bool passed_norm(const float* state, const std::vector<float>& norm) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < norm.size(); ++i) {
    if (norm[i] == 0) continue;
    sum += static_cast<double>(state[i]) * state[i] / (static_cast<double>(norm[i]) * norm[i]);
    ++count;
  }
  return count > 0 && std::abs(std::sqrt(sum / count) - 1) < 0.02;
}

// Checks that all states of a file are finite, and sets file.normed.
void check_states(HiddenFile& file, const HiddenFilesOptions& options, const std::function<void()>& look) {
  const InputFile in(file.path, ErrorKind::kData);
  const int64_t block = std::max<int64_t>(1, kCheckedValues / options.hidden_size);
  std::vector<float> states(static_cast<size_t>(std::min(block, file.tokens) * options.hidden_size));
  int64_t normed = 0, sampled = 0;
  const int64_t stride = std::max<int64_t>(1, file.tokens / kNormSample);
  for (int64_t begin = 0; begin < file.tokens; begin += block) {
    look();
    const int64_t end = std::min(file.tokens, begin + block);
    read_last(in, file, options.hidden_size, begin, end, states.data());
    for (int64_t t = begin; t < end; ++t) {
      const float* state = states.data() + (t - begin) * options.hidden_size;
      if (!std::all_of(state, state + options.hidden_size, [](float x) { return std::isfinite(x); }))
        refuse_file(file.path, "hidden_states: the last state of token " + std::to_string(t) + " is not finite");
      if (t % stride != 0) continue;
      ++sampled;
      normed += passed_norm(state, options.norm);
    }
  }
  file.normed = sampled > 0 && normed == sampled;
}

// Finds rows by the hash of their tokens. The last token is left out of the hash, because its hidden state predicts
// nothing and may be missing from the file.
class RowIndex {
 public:
  explicit RowIndex(const std::vector<const TokenRow*>& rows) {
    for (const TokenRow* row : rows) {
      uint64_t hash = kSeed;
      for (size_t t = 0; t + 1 < row->tokens.size(); ++t) hash = next(hash, row->tokens[t]);
      by_hash_.emplace(hash, row);
    }
  }
  // Calls f(row) for every row whose tokens, without the last, are a prefix of `tokens`, the file's tokens.
  template <class F>
  void matches(const std::vector<int64_t>& tokens, const F& f) const {
    uint64_t hash = kSeed;
    for (size_t t = 0; t < tokens.size(); ++t) {
      hash = next(hash, tokens[t]);
      const auto [first, last] = by_hash_.equal_range(hash);
      for (auto it = first; it != last; ++it) {
        const TokenRow& row = *it->second;
        const size_t shared = std::min(row.tokens.size(), tokens.size());
        if (row.tokens.size() == t + 2 && std::equal(row.tokens.begin(), row.tokens.begin() + shared, tokens.begin()))
          f(row);
      }
    }
  }

 private:
  static constexpr uint64_t kSeed = 0xcbf29ce484222325;
  static uint64_t next(uint64_t hash, int64_t token) { return (hash ^ static_cast<uint64_t>(token)) * 0x100000001b3; }
  std::unordered_multimap<uint64_t, const TokenRow*> by_hash_;
};

std::string digest_of(const TokenRow& row) {
  return sha256_hex({reinterpret_cast<const char*>(row.tokens.data()),
                     (row.tokens.empty() ? 0 : row.tokens.size() - 1) * sizeof(int32_t)});
}

std::vector<fs::path> safetensors_in(const fs::path& directory) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (auto it = fs::directory_iterator(directory, ec); !ec && it != fs::directory_iterator(); it.increment(ec))
    if (it->path().extension() == ".safetensors" && !it->path().filename().string().starts_with('.'))
      out.push_back(it->path());
  if (ec || out.empty())
    throw Error(ErrorKind::kData, directory.string() +
                                      ": expected a directory with .safetensors files of hidden states" +
                                      (ec ? ": " + ec.message() : ", found none"));
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

HiddenFiles::HiddenFiles(const HiddenFilesOptions& options, const std::vector<const TokenRow*>& rows) {
  const RowIndex index(rows);
  const std::vector<fs::path> paths = safetensors_in(options.directory);
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto look = [&] {
      if (options.step) options.step(static_cast<double>(i) / static_cast<double>(paths.size()));
    };
    look();
    try {
      const SafetensorsFile opened(paths[i]);
      const std::vector<int64_t> tokens = read_tokens(opened);
      HiddenFile file = describe_file(opened, static_cast<int64_t>(tokens.size()), options.hidden_size);
      bool used = false;
      index.matches(tokens,
                    [&](const TokenRow& row) { used |= of_tokens_.emplace(digest_of(row), files_.size()).second; });
      if (!used) {
        unused_.push_back(paths[i].filename().string());
        continue;
      }
      check_states(file, options, look);
      files_.push_back(file);
    } catch (const Error& e) {
      throw Error(e.kind() == ErrorKind::kModel ? ErrorKind::kData : e.kind(), e.what());
    }
  }
  if (files_.empty())
    throw Error(ErrorKind::kData, options.directory.string() + ": none of the " + std::to_string(paths.size()) +
                                      " files has the tokens of a row of the data (" +
                                      paths.front().filename().string() +
                                      ", …): the target must be served these rows as token ids");
}

const HiddenFile* HiddenFiles::find(const TokenRow& row) const {
  const auto it = of_tokens_.find(digest_of(row));
  return it == of_tokens_.end() ? nullptr : &files_[it->second];
}

void read_states(const HiddenFile& file, int64_t hidden_size, int64_t begin, int64_t end, float* out) {
  if (begin < 0 || end > file.tokens)
    throw Error(ErrorKind::kInternal, file.path.string() + ": tokens outside the file");
  read_last(InputFile(file.path, ErrorKind::kData), file, hidden_size, begin, end, out);
}

}  // namespace specdec::distill
