// One level of random drafts for the kernel draft(), and what the host's steps would draw from the same logits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::self_test {

// Chains and trees that are at some level. Addresses are left open in the rows.
struct DraftLevel {
  std::vector<kernels::DraftRow> rows;
  std::vector<float> logits;  // [rows, vocab]
  size_t vocab = 0;
  std::vector<kernels::VerifyNode> nodes;      // with the tokens of earlier levels
  std::vector<float> confidences;              // by node
  std::vector<rules::AcceptanceTable> tables;  // by sequence
  std::vector<int32_t> sequence_of;            // by row; -1 - sequence if it never stops
  std::vector<int32_t> going;                  // by sequence
  int32_t drafting = 0;                        // sequences that have a part in the pass
  bool last = false;                           // no pass follows
  bool needs_samples() const;

  // What the level must give: the nodes' tokens, confidences, whether sequences still draft, and how many there are.
  struct Result {
    std::vector<int32_t> tokens;
    std::vector<float> confidences;
    std::vector<int32_t> going;
    int32_t next = 0;
  };
  Result on_host() const;

  // The arrays of the level on a device: ids[0] and ids[1] have an element for each node.
  struct Memory {
    int32_t* ids[2];
    int32_t *going, *next;
    const int32_t* drafting;
    const rules::AcceptanceTable* tables;
  };
  // Returns the rows with the addresses of these arrays.
  std::vector<kernels::DraftRow> rows_at(const Memory& memory) const;
  // Returns the rows of the pass of sample() that comes first if it needs_samples().
  std::vector<kernels::SampleRow> sample_rows() const;
};
DraftLevel random_draft_level(uint64_t number, size_t vocab);

}  // namespace specdec::self_test
