// A transaction commits its changes of the state file together or not at all. It begins in the constructor, and rolls
// back if it is destroyed without commit(). A second transaction on the same state throws. So a function that writes
// within a transaction takes the transaction by reference.
#pragma once

#include "monitor/state/state.h"

namespace specdec::monitor {

class Transaction {
 public:
  // Throws Error(kNetwork), which means "try again", while another process is writing; Error(kIo) if the disk fails.
  explicit Transaction(State& state);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  State& state() { return state_; }
  // Makes the changes durable. Nothing may be written through this transaction afterwards. Throws as the constructor
  // does, after rolling back the changes.
  void commit();

 private:
  State& state_;
  bool is_open_ = true;
};

}  // namespace specdec::monitor
