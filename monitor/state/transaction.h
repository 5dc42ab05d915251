// A transaction commits its changes of the state file together or not at all. It begins in the constructor, and rolls
// back if it is destroyed without commit(). Functions that write within a transaction take it by reference, because
// SQLite has one transaction at a time and a second one on the same state throws.
#pragma once

#include "monitor/state/state.h"

namespace specdec::monitor {

class Transaction {
 public:
  // Throws Error(kNetwork) if another process is writing, Error(kIo) if the disk fails.
  explicit Transaction(State& state);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  State& state() { return state_; }
  // Makes the changes durable; nothing may be written through this transaction afterwards. Throws as the constructor
  // does; the changes are then rolled back.
  void commit();

 private:
  State& state_;
  bool is_open_ = true;
};

}  // namespace specdec::monitor
