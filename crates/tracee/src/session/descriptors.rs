//! Descriptors that a call creates in the tracee. From the moment it exists, each is closed on the way home.

use tiexec_core::addr::RemoteAddr;
use tiexec_sys::{Errno, SysError};

use super::Session;
use crate::arch;
use crate::error::TraceError;
use crate::remote::{self, CLOSE, COPY_WITHIN, SystemCall};
use crate::syscall_manifest::ManifestEntry;

const INT: usize = size_of::<i32>();

/// Closes the descriptor with this number.
fn close(fd: i32) -> SystemCall {
    remote::close(fd.cast_unsigned().into())
}

/// The calls that [`Session::call_for_descriptor`] and [`Session::call_for_descriptors`] make beside the call that
/// the caller gives.
pub const DESCRIPTOR_CALLS: [ManifestEntry; 2] = [CLOSE, COPY_WITHIN];

impl Session {
    /// Makes a call that has the kernel write one descriptor (an int) to the address given to `call`. The call may
    /// also use the 16 bytes before that address, for the header of a control message (cmsg(3)). From the moment it
    /// exists, the descriptor is closed on the way home. Returns `None` if the kernel wrote none.
    ///
    /// # Errors
    /// The tracee is gone, or on its way home.
    pub fn call_for_descriptor(
        &mut self,
        call: impl FnOnce(&Self, RemoteAddr) -> Result<SystemCall, TraceError>,
    ) -> Result<Result<Option<i32>, SysError>, TraceError> {
        // The kernel writes the number directly into the frame that closes the descriptor.
        self.release_on_the_way_home(close(-1));
        let at = self.first_argument_of_next_chain(0);
        let call = call(self, at)?;
        let answer = self.call(call)?;
        Ok(match answer {
            Ok(_) => Ok(self.written_number(at)?),
            Err(errno) => {
                self.released();
                Err(errno)
            }
        })
    }

    /// As [`call_for_descriptor`](Self::call_for_descriptor), by a [batch](Self::batch) with the call `more` behind
    /// it. `None` gives no reason.
    ///
    /// # Errors
    /// The tracee is gone, or on its way home.
    pub fn batch_for_descriptor(
        &mut self,
        call: impl FnOnce(&Self, RemoteAddr) -> Result<SystemCall, TraceError>,
        more: Option<SystemCall>,
    ) -> Result<Option<i32>, TraceError> {
        self.release_on_the_way_home(close(-1));
        // Before it lie the frames of all calls but the first, and the frame that ends the batch.
        let at = self.first_argument_of_next_chain(1 + u64::from(more.is_some()));
        let calls: Vec<SystemCall> = [call(self, at)?].into_iter().chain(more).collect();
        self.batch(&calls)?;
        self.written_number(at)
    }

    /// Reads the number that the kernel wrote for the release registered last, and registers the release again with
    /// it.
    fn written_number(&mut self, at: RemoteAddr) -> Result<Option<i32>, TraceError> {
        let mut number = [0; INT];
        self.read(at, &mut number)?;
        self.released();
        let fd = i32::from_ne_bytes(number);
        if fd < 0 {
            return Ok(None);
        }
        self.release_on_the_way_home(close(fd));
        Ok(Some(fd))
    }

    /// Makes a call that has the kernel write two descriptors to the address given to `call`, as pipe(2) and
    /// socketpair(2) do. From the moment they exist, both are closed on the way home, the second first. If the
    /// second's number cannot be copied, only the first is, until this function returns.
    ///
    /// # Errors
    /// The tracee is gone, or on its way home.
    pub fn call_for_descriptors(
        &mut self,
        call: impl Fn(RemoteAddr) -> SystemCall,
    ) -> Result<Result<[i32; 2], SysError>, TraceError> {
        if self.has_batches()
            && let Ok(numbers) = self.try_for_descriptors(true, &call)?
        {
            return Ok(Ok(numbers));
        }
        self.try_for_descriptors(false, &call)
    }

    /// Makes the call, in a batch or by itself. In a batch, an error says only that no numbers were written.
    fn try_for_descriptors(
        &mut self,
        batched: bool,
        call: impl Fn(RemoteAddr) -> SystemCall,
    ) -> Result<Result<[i32; 2], SysError>, TraceError> {
        let before = self.releases.len();
        // The frame that ends a batch comes first.
        let first = u64::from(batched);
        // close(2) uses the lower half of its argument, which is the first number. The second number lies in the
        // upper half, and is copied to the argument of the other frame.
        self.release_on_the_way_home(close(-1));
        let own_id = self.own_id.filter(|_| self.may(&COPY_WITHIN));
        let at = self.first_argument_of_next_chain(first + if own_id.is_some() { 2 } else { 0 });
        if let Some(own_id) = own_id {
            self.release_on_the_way_home(close(-1));
            let second = self.first_argument_of_next_chain(first + 1);
            let words = [second.get(), INT as u64, at.get() + INT as u64, INT as u64];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let to = self.keep(&bytes)?;
            let from = RemoteAddr::new(to.get() + 2 * size_of::<u64>() as u64);
            self.release_on_the_way_home(remote::copy_within(own_id, to, from));
        }
        let call = call(at);
        let answer = if batched {
            self.batch(&[call])?;
            Ok(0)
        } else {
            self.call(call)?
        };
        let mut numbers = [[0; INT]; 2];
        self.read(at, numbers.as_flattened_mut())?;
        let numbers = numbers.map(i32::from_ne_bytes);
        // Before the kernel writes, the upper half is 0 and the lower half -1.
        let answer = if numbers[0] < 0 {
            answer.and(Err(SysError { call: call.name, errno: Errno::FAULT }))
        } else {
            answer
        };
        while self.releases.len() > before {
            self.released();
        }
        if answer.is_ok() {
            for fd in numbers {
                self.release_on_the_way_home(close(fd));
            }
        }
        Ok(answer.map(|_| numbers))
    }

    /// Returns the address of the first argument of the `index`-th call in the next chain.
    fn first_argument_of_next_chain(&self, index: u64) -> RemoteAddr {
        let base = self.slots[1 - self.current_slot].get();
        RemoteAddr::new(base + arch::FRAME_LEN * index + arch::FIRST_ARGUMENT)
    }
}
