// Computes what may be on the disk after a power cut at some moment of a run that faults.cpp recorded
// (SPECDEC_FAULT_JOURNAL). The model assumes what POSIX promises and no more:
// - A file has at least the bytes of its last flush. Of its later writes, any number of the first ones may have
//   reached the disk, and half of the next write.
// - Creating, replacing or removing a name is durable once a directory that the change concerns was flushed. A rename
//   happens in both directories or in neither.
// - Changes of names that were not flushed may have reached the disk in any order, except that the changes of one name
//   keep their order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/journal.h"

namespace specdec::testing {

enum class Lost {
  kAll,       // everything that was not flushed is lost
  kContents,  // all directory entries survive, but files have only the bytes of their last flush
  kSome       // the seed decides which of the changes that were not flushed are lost
};

class PowerCut {
 public:
  // `start` is a copy of the folder `root` made before the recording; everything in it counts as durable. Throws
  // std::runtime_error if the journal contains a change that the model cannot apply, or ends within a change.
  PowerCut(const std::filesystem::path& journal, std::filesystem::path start, const std::string& root);
  size_t changes() const { return changes_.size(); }
  std::string name(size_t n) const;  // describes the n-th change (from 0) for messages
  // Empties the folder `out` and writes into it what is on the disk if the power is cut after the first n changes.
  void restore(size_t n, Lost lost, uint64_t seed, const std::filesystem::path& out) const;

 private:
  std::filesystem::path start_;
  std::string root_;
  std::vector<Change> changes_;
};

}  // namespace specdec::testing
