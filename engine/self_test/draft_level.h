// One level (depth) of random drafts as input of the kernel draft(), and the results of the host's code for the same
// logits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::self_test {

// Random chains and trees, all at one level of drafting. The addresses in the rows are not set.
struct DraftLevel {
  std::vector<kernels::DraftRow> rows;
  std::vector<float> logits;  // [rows, vocab]
  size_t vocab = 0;
  std::vector<kernels::VerifyNode> nodes;      // all nodes; only those of earlier levels have tokens
  std::vector<float> confidences;              // confidence of each node
  std::vector<rules::AcceptanceTable> tables;  // one per sequence
  std::vector<int32_t> sequence_of;            // sequence of each row; −1 − sequence if drafting never stops early
  std::vector<int32_t> going;                  // one per sequence: nonzero while it continues to draft
  int32_t drafting = 0;                        // number of sequences in the draft pass
  bool last = false;                           // whether this is the last draft pass before verification
  bool needs_samples() const;

  // The expected results of the level: the nodes' tokens and confidences, which sequences still draft, and their
  // number.
  struct Result {
    std::vector<int32_t> tokens;
    std::vector<float> confidences;
    std::vector<int32_t> going;
    int32_t next = 0;
  };
  Result on_host() const;

  // Addresses of the level's arrays on a device: ids[0] and ids[1] have one element per node.
  struct Memory {
    int32_t* ids[2];
    int32_t *going, *next;
    const int32_t* drafting;
    const rules::AcceptanceTable* tables;
  };
  // Returns the rows with the addresses of these arrays filled in.
  std::vector<kernels::DraftRow> rows_at(const Memory& memory) const;
  // Returns the rows for the kernel sample(), which must run first if needs_samples() is true.
  std::vector<kernels::SampleRow> sample_rows() const;
};
DraftLevel random_draft_level(uint64_t number, size_t vocab);

}  // namespace specdec::self_test
