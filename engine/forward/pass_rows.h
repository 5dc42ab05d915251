// Describes the rows of one pass over cached sequences: for each row, its token, the slot that its key is written to,
// and the keys that it may see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/config/config.h"
#include "engine/forward/forward.h"
#include "engine/kernels/cpu/cpu.h"

namespace specdec::model {

// The rows of a pass, one per token, in the order of the parts. fill() can be called again and reuses the memory.
struct PassRows {
  static constexpr int64_t kAttendRows = 4;
  struct Row {
    KvCache* cache;
    int32_t token;
    void* slot;  // address of the row's key for the first head and layer
  };
  // At most kAttendRows rows of one part (one sequence's tokens). Their attention is computed together.
  struct Group {
    int64_t first, rows;
  };

  // Fills the lists below from the parts, and reserves room for their tokens in the caches. element_bytes is the size
  // of one cached number.
  void fill(std::span<const SequencePart> parts, const DecoderConfig& config, size_t element_bytes);

  std::vector<Row> rows;
  std::vector<Group> groups;
  // The keys that each row sees, for each sliding window of the decoder's layers (0: no window).
  std::map<int64_t, std::vector<kernels::cpu::Visible>> visible;
  std::vector<int64_t> positions;
  std::vector<int64_t> logit_rows;  // rows that need logits
  int64_t longest = 0;              // tokens of the longest sequence, including those of this pass

 private:
  // A row's visible keys, in the form in which they are stored while the lists are filled. `extra` is an index into
  // extra_ instead of a pointer, because extra_ may still be reallocated.
  struct Listed {
    int64_t prefix;
    size_t extra;
    int64_t count;
  };
  void clear();
  void add(const SequencePart& part, const DecoderConfig& config, size_t element_bytes);

  std::vector<Listed> listed_;
  std::vector<int32_t> extra_;  // visible keys that are not in a row's prefix
};

}  // namespace specdec::model
