// The rows of one incremental pass: which token each is, where its key goes, and which keys it may see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/kernels/cpu/cpu.h"
#include "engine/model/config.h"
#include "engine/model/forward.h"

namespace specdec::model {

// All parts of a pass, one row a token, parts in order. Filled again and again, it keeps its memory.
struct PassRows {
  static constexpr int64_t kAttendRows = 4;
  struct Row {
    KvCache* cache;
    int32_t token;
    void* slot;  // where the key of its first head and layer goes
  };
  // Rows of one part that attend together, at most kAttendRows.
  struct Group {
    int64_t first, rows;
  };

  // Reserves room in the caches for the parts' tokens. element_bytes: the size of one value in the caches.
  void fill(std::span<const SequencePart> parts, const DecoderConfig& config, size_t element_bytes);

  std::vector<Row> rows;
  std::vector<Group> groups;
  std::map<int64_t, std::vector<kernels::cpu::Visible>> visible;  // by the window of a layer: what each row sees
  std::vector<int64_t> positions;
  std::vector<int64_t> logit_rows;  // rows whose logits are wanted
  int64_t longest = 0;              // tokens of the longest sequence, those of this pass included

 private:
  // What a row sees, while extra_ still grows.
  struct Listed {
    int64_t prefix;
    size_t extra;
    int64_t count;
  };
  void clear();
  void add(const SequencePart& part, const DecoderConfig& config, size_t element_bytes);

  std::vector<Listed> listed_;
  std::vector<int32_t> extra_;  // keys beyond a row's prefix that it sees
};

}  // namespace specdec::model
