// Turns rows of token shards into training batches. Rows are padded on the right, so a causal pass needs no mask. The
// rows of a batch have nearly equal lengths, so there is little padding. The order of the rows depends only on (seed,
// epoch), so a run is resumed from the epoch and the batch number.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::distill {

struct PreparedRows {
  std::vector<TokenRow> rows;
  int64_t loss_tokens = 0;  // positions in the loss: loss_mask[t] = 1 with t >= 1
  int64_t tokens = 0;
  // Number of rows longer than the sequence length, and of tokens cut off from them.
  int64_t cut_rows = 0, cut_tokens = 0;
  int64_t empty_rows = 0;  // rows dropped because they have no position in the loss
};
// Cuts rows to `sequence_length` tokens (0 = no cut) and drops rows without a position in the loss.
PreparedRows prepare_rows(std::vector<TokenRow> rows, int64_t sequence_length);

// Returns the number of positions of a row that are in the loss: loss_mask[t] = 1 with t >= 1.
int64_t learnt_positions(const TokenRow& row);

struct Branches;  // distill/teacher/branches.h

struct Batch {
  at::Tensor tokens;              // [B, S] int64, padded with 0 on the right
  at::Tensor labels;              // [B·S] int64: the next token of the row, 0 after its end
  at::Tensor rows;                // [R] int64: flat positions b·S + t whose next token has loss_mask 1
  std::vector<size_t> row_index;  // index of each row of the batch in the training set
  at::Tensor temperatures;        // [B] fp32: temperature with which each row was served; 0 = greedy, NaN = unknown
  int64_t num_tokens = 0;         // number of tokens, without padding
  // Tokens that the draft itself generated after some positions of the batch (roll-outs). The teacher computes logits
  // for these tokens, too. Null = none. `branches` must outlive the batch.
  const Branches* branches = nullptr;
};
// Makes a batch of the rows at `index`. Throws Error(kInternal) if `index` is empty.
Batch make_batch(const std::vector<TokenRow>& rows, const std::vector<size_t>& index);

// Groups `order` (row indices) into batches of at most `batch_tokens` padded tokens, but at least one row. The rows of
// about 32 batches at a time are sorted by length, so that a batch holds rows of nearly equal length.
std::vector<std::vector<size_t>> group_rows(const std::vector<TokenRow>& rows, const std::vector<size_t>& order,
                                            int64_t batch_tokens);

// Returns one rank's share of the rows of `groups`, grouped into batches of at most `batch_tokens` padded tokens. With
// one rank, the result is `groups` itself. The rows are assigned from the longest to the shortest, each to the rank
// with the fewest tokens so far, so that the ranks need about the same time. A share may be empty.
std::vector<std::vector<size_t>> share_of(const std::vector<TokenRow>& rows,
                                          const std::vector<std::vector<size_t>>& groups, int64_t batch_tokens,
                                          int rank, int ranks);

// One rank's part of a training step.
struct StepShare {
  std::vector<Batch> batches;  // may be empty
  // The indices of the rows that all ranks together train on in this step, and the number of positions of these rows
  // that are in the loss.
  std::vector<size_t> rows;
  int64_t learnt = 0;
};

struct BatchCursor {
  int64_t epoch = 0;
  int64_t batch = 0;  // batches of this epoch that were already returned
  bool operator==(const BatchCursor&) const = default;
};

class Batcher {
 public:
  // `rows` must outlive the batcher and must not be empty.
  Batcher(const std::vector<TokenRow>& rows, int64_t batch_tokens, uint64_t seed, BatchCursor cursor = {});

  Batch next();  // returns every row exactly once per epoch, then starts the next epoch
  // Advances by `batches` batches and returns this rank's share of their rows. Together the ranks get the same rows,
  // however many ranks there are.
  StepShare next_step(int64_t batches, int rank, int ranks);
  const BatchCursor& cursor() const { return cursor_; }
  void seek(BatchCursor cursor);
  int64_t batches_in_epoch(int64_t epoch) const;

 private:
  std::vector<std::vector<size_t>> plan(int64_t epoch) const;
  const std::vector<size_t>& next_group();

  const std::vector<TokenRow>& rows_;
  int64_t batch_tokens_;
  uint64_t seed_;
  BatchCursor cursor_;
  std::vector<std::vector<size_t>> plan_;
};

}  // namespace specdec::distill
