#include "distill/labels/label_options.h"

#include <cmath>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/version.h"
#include "data/shards/shard_reader.h"

namespace specdec::distill {

namespace {

constexpr int64_t kDefaultTopK = 32, kDefaultTopKOfEndpoint = 20;

}  // namespace

void validate(const LabelOptions& o) {
  const auto require = [](bool ok, const std::string& flag, const std::string& expected) {
    if (!ok) throw Error(ErrorKind::kUsage, flag + ": expected " + expected);
  };
  require(!o.data.empty(), "DIR", "a directory written by `specdec data ingest`");
  require(!o.out.empty(), "--out", "a directory to write");
  require(!o.target.empty() || !o.url.empty(), "--target", "a model or the URL of an endpoint");
  require(o.top_k >= 0 && o.top_k <= LabelIndex::kMostTopK, "--top-k", "a number in [1, 1024], or 0 for the default");
  require(!o.hidden || o.url.empty(), "--hidden", "a model: an endpoint does not return hidden states");
  require(!o.hidden || o.top_k == 0, "--top-k", "no --hidden with it");
  require(o.temperature > 0 && o.temperature <= 10, "--temperature", "a number in (0, 10]");
  require(o.url.empty() || o.temperature == 1, "--temperature", "1 at an endpoint, which returns no others");
  require(o.concurrency >= 1 && o.concurrency <= 1024, "--concurrency", "a number in [1, 1024]");
  require(o.request_timeout_s > 0 && o.request_timeout_s <= 86400, "--request-timeout", "seconds in (0, 86400]");
  specdec::validate(o.device);
}

LabelIndex new_label_index(const LabelOptions& o, const data::ShardReader& data) {
  LabelIndex index;
  index.kind = o.hidden ? "hidden" : "top_k";
  index.vocab_size = data.index().vocab_size;
  if (!o.hidden)
    index.top_k = std::min(index.vocab_size, o.top_k > 0     ? o.top_k
                                             : o.url.empty() ? kDefaultTopK
                                                             : kDefaultTopKOfEndpoint);
  index.temperature = o.temperature;
  index.data_digest = data.digest();
  index.tokenizer_digest = data.index().tokenizer_digest;
  for (const ShardFile& shard : data.index().shards) index.num_rows += shard.num_rows;
  if (!o.target.empty()) {
    const std::string tokenizer = tokenizer_digest(o.target);
    if (tokenizer != index.tokenizer_digest)
      throw Error(ErrorKind::kData, o.data + ": tokenised by another tokenizer (" +
                                        index.tokenizer_digest.substr(0, 12) + ") than the target's (" +
                                        tokenizer.substr(0, 12) + "): run `specdec data ingest` again with --target " +
                                        o.target);
    index.target = fingerprint_model(o.target);
  }
  index.tool_version = kToolVersion;
  index.started = format_utc(SystemClock().unix_seconds());
  return index;
}

}  // namespace specdec::distill
