#include "distill/rows/batcher.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace specdec::distill {

namespace {

constexpr int64_t kBatchesInStretch = 32;

template <class T>
void shuffle(std::vector<T>& items, PhiloxStream stream) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[stream.below(i)]);
}

int64_t length_of(const TokenRow& row) { return static_cast<int64_t>(row.tokens.size()); }

}  // namespace

int64_t learnt_positions(const TokenRow& row) {
  return row.loss_mask.empty() ? 0 : std::count(row.loss_mask.begin() + 1, row.loss_mask.end(), uint8_t{1});
}

PreparedRows prepare_rows(std::vector<TokenRow> rows, int64_t sequence_length) {
  PreparedRows out;
  for (TokenRow& row : rows) {
    if (sequence_length > 0 && length_of(row) > sequence_length) {
      ++out.cut_rows;
      out.cut_tokens += length_of(row) - sequence_length;
      row.tokens.resize(static_cast<size_t>(sequence_length));
      row.loss_mask.resize(static_cast<size_t>(sequence_length));
    }
    const int64_t learnt = learnt_positions(row);
    if (learnt == 0) {
      ++out.empty_rows;
      continue;
    }
    out.loss_tokens += learnt;
    out.tokens += length_of(row);
    out.rows.push_back(std::move(row));
  }
  return out;
}

Batch make_batch(const std::vector<TokenRow>& rows, const std::vector<size_t>& index) {
  if (index.empty()) throw Error(ErrorKind::kInternal, "batcher: a batch without rows");
  size_t longest = 0;
  for (const size_t i : index) longest = std::max(longest, rows[i].tokens.size());
  const auto count = static_cast<int64_t>(index.size()), width = static_cast<int64_t>(longest);
  Batch batch;
  batch.tokens = at::zeros({count, width}, at::kLong);
  batch.labels = at::zeros({count * width}, at::kLong);
  batch.row_index = index;
  batch.temperatures = at::empty({count}, at::kFloat);
  for (size_t b = 0; b < index.size(); ++b) {
    const TokenRow& row = rows[index[b]];
    batch.temperatures.mutable_data_ptr<float>()[b] =
        row.has_sampling ? static_cast<float>(row.sampling.temperature) : std::numeric_limits<float>::quiet_NaN();
  }
  int64_t* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>();
  std::vector<int64_t> learnt;
  for (size_t b = 0; b < index.size(); ++b) {
    const TokenRow& row = rows[index[b]];
    for (size_t t = 0; t < row.tokens.size(); ++t) {
      const size_t at = b * longest + t;
      tokens[at] = row.tokens[t];
      if (t + 1 == row.tokens.size()) break;
      labels[at] = row.tokens[t + 1];
      if (row.loss_mask[t + 1] == 1) learnt.push_back(static_cast<int64_t>(at));
    }
    batch.num_tokens += length_of(row);
  }
  batch.rows = at::empty({static_cast<int64_t>(learnt.size())}, at::kLong);
  std::copy(learnt.begin(), learnt.end(), batch.rows.mutable_data_ptr<int64_t>());
  return batch;
}

std::vector<std::vector<size_t>> group_rows(const std::vector<TokenRow>& rows, const std::vector<size_t>& order,
                                            int64_t batch_tokens) {
  std::vector<std::vector<size_t>> batches;
  std::vector<size_t> stretch;
  size_t next = 0;
  while (next < order.size() || !stretch.empty()) {
    int64_t tokens = 0;
    for (const size_t i : stretch) tokens += length_of(rows[i]);
    while (next < order.size() && tokens < kBatchesInStretch * batch_tokens) {
      tokens += length_of(rows[order[next]]);
      stretch.push_back(order[next++]);
    }
    std::stable_sort(stretch.begin(), stretch.end(),
                     [&](size_t a, size_t b) { return rows[a].tokens.size() > rows[b].tokens.size(); });
    size_t begin = 0;
    while (begin < stretch.size()) {
      const int64_t width = std::max<int64_t>(1, length_of(rows[stretch[begin]]));
      const size_t take = static_cast<size_t>(std::max<int64_t>(1, batch_tokens / width));
      // `stretch` holds the rows of about 32 batches. If the last batch of the stretch is not full, its rows are left
      // for the next stretch.
      if (begin + take > stretch.size() && next < order.size()) break;
      const size_t end = std::min(stretch.size(), begin + take);
      batches.emplace_back(stretch.begin() + static_cast<ptrdiff_t>(begin),
                           stretch.begin() + static_cast<ptrdiff_t>(end));
      begin = end;
    }
    stretch.erase(stretch.begin(), stretch.begin() + static_cast<ptrdiff_t>(begin));
  }
  return batches;
}

std::vector<std::vector<size_t>> share_of(const std::vector<TokenRow>& rows,
                                          const std::vector<std::vector<size_t>>& groups, int64_t batch_tokens,
                                          int rank, int ranks) {
  if (ranks == 1) return groups;
  std::vector<size_t> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  std::stable_sort(all.begin(), all.end(),
                   [&](size_t a, size_t b) { return rows[a].tokens.size() > rows[b].tokens.size(); });
  std::vector<int64_t> tokens(static_cast<size_t>(ranks), 0);
  std::vector<std::vector<size_t>> out;
  size_t width = 0, room = 0;
  for (const size_t row : all) {
    const auto least = std::min_element(tokens.begin(), tokens.end());
    *least += length_of(rows[row]);
    if (least - tokens.begin() != rank) continue;
    if (room == 0) {
      width = std::max<size_t>(1, rows[row].tokens.size());
      room = std::max<size_t>(1, static_cast<size_t>(batch_tokens) / width);
      out.emplace_back();
    }
    out.back().push_back(row);
    --room;
  }
  return out;
}

Batcher::Batcher(const std::vector<TokenRow>& rows, int64_t batch_tokens, uint64_t seed, BatchCursor cursor)
    : rows_(rows), batch_tokens_(batch_tokens), seed_(seed) {
  if (rows.empty()) throw Error(ErrorKind::kInternal, "batcher: no rows");
  seek(cursor);
}

std::vector<std::vector<size_t>> Batcher::plan(int64_t epoch) const {
  std::vector<size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const uint64_t stream = 2 * static_cast<uint64_t>(epoch);
  shuffle(order, PhiloxStream(seed_, stream));
  auto batches = group_rows(rows_, order, batch_tokens_);
  shuffle(batches, PhiloxStream(seed_, stream + 1));
  return batches;
}

void Batcher::seek(BatchCursor cursor) {
  cursor_ = cursor;
  plan_ = plan(cursor.epoch);
  if (cursor.batch < 0 || cursor.batch > static_cast<int64_t>(plan_.size()))
    throw Error(ErrorKind::kData, "batch cursor: expected a batch in [0, " + std::to_string(plan_.size()) +
                                      "] of epoch " + std::to_string(cursor.epoch) + ", found " +
                                      std::to_string(cursor.batch));
}

const std::vector<size_t>& Batcher::next_group() {
  if (cursor_.batch == static_cast<int64_t>(plan_.size())) seek({cursor_.epoch + 1, 0});
  return plan_[static_cast<size_t>(cursor_.batch++)];
}

Batch Batcher::next() { return make_batch(rows_, next_group()); }

StepShare Batcher::next_step(int64_t batches, int rank, int ranks) {
  std::vector<std::vector<size_t>> groups;
  StepShare out;
  for (int64_t i = 0; i < batches; ++i) {
    groups.push_back(next_group());
    for (const size_t row : groups.back()) {
      out.rows.push_back(row);
      out.learnt += learnt_positions(rows_[row]);
    }
  }
  for (const auto& group : share_of(rows_, groups, batch_tokens_, rank, ranks))
    out.batches.push_back(make_batch(rows_, group));
  return out;
}

int64_t Batcher::batches_in_epoch(int64_t epoch) const {
  return epoch == cursor_.epoch ? static_cast<int64_t>(plan_.size()) : static_cast<int64_t>(plan(epoch).size());
}

}  // namespace specdec::distill
