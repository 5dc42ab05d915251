// What may be on the disk after the power went at some moment of a run that was recorded by faults.cpp
// (SPECDEC_FAULT_JOURNAL). The model is what POSIX promises and no more: a file has the bytes of its last flush, and a
// name (made, replaced or removed) is durable once a directory that it changed was flushed; a rename happens in both
// directories or in neither. What was not flushed may be there, or not, or in part: a file's later writes up to any of
// them and half of the next, names in any order that keeps changes of one name in theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/faults/journal.h"

namespace specdec::testing {

enum class Lost {
  kAll,       // everything that was not flushed
  kContents,  // names are as they were, the bytes of files are those of their last flush
  kSome       // some of it, by the seed
};

class PowerCut {
 public:
  // `start`: a copy of the folder `root` as it was before the recording, all of it durable. Throws std::runtime_error
  // for a journal with a change that the model does not know.
  PowerCut(const std::filesystem::path& journal, std::filesystem::path start, const std::string& root);
  size_t changes() const { return changes_.size(); }
  std::string name(size_t n) const;  // of the n-th change (from 0), for messages
  // Writes what the first n changes left into the folder `out`, which is emptied first.
  void restore(size_t n, Lost lost, uint64_t seed, const std::filesystem::path& out) const;

 private:
  std::filesystem::path start_;
  std::string root_;
  std::vector<Change> changes_;
};

}  // namespace specdec::testing
