// Computes what may be on the disk after a power cut at some moment of a run that faults.cpp recorded
// (SPECDEC_FAULT_JOURNAL). The model is what POSIX promises and no more. A file has the bytes of its last flush. A name
// (made, replaced or removed) is durable once a directory that it changed was flushed; a rename happens in both
// directories or in neither. What was not flushed may be there as a whole, in part or not at all: a file's later writes
// up to any of them and half of the next, and names in any order that keeps the changes of one name in theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/journal.h"

namespace specdec::testing {

enum class Lost {
  kAll,       // everything that was not flushed is lost
  kContents,  // names are kept, files have the bytes of their last flush
  kSome       // the seed decides what is lost
};

class PowerCut {
 public:
  // `start` is a copy of the folder `root` from before the recording, all of it durable. Throws std::runtime_error if
  // the journal has a change that the model does not know.
  PowerCut(const std::filesystem::path& journal, std::filesystem::path start, const std::string& root);
  size_t changes() const { return changes_.size(); }
  std::string name(size_t n) const;  // describes the n-th change (from 0) for messages
  // Writes what the first n changes leave after the cut into the folder `out`, which is emptied first.
  void restore(size_t n, Lost lost, uint64_t seed, const std::filesystem::path& out) const;

 private:
  std::filesystem::path start_;
  std::string root_;
  std::vector<Change> changes_;
};

}  // namespace specdec::testing
