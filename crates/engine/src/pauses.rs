//! The pause until the next look.

use std::time::Duration;

/// Pauses that grow: each is twice the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pauses {
    /// The first one.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Pauses {
    /// Pauses that are all the same.
    pub const fn of(pause: Duration) -> Self {
        Self { first: pause, longest: pause }
    }

    /// Begins with the first one.
    pub const fn begin(self) -> Growing {
        Growing { pauses: self, next: self.first }
    }
}

/// The pauses of one watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growing {
    pauses: Pauses,
    next: Duration,
}

impl Growing {
    /// Returns the next pause, which stays the next one.
    pub const fn next(&self) -> Duration {
        self.next
    }

    /// Returns the next pause. The one after it is twice as long.
    pub fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.pauses.longest);
        pause
    }

    /// Makes the next pause no longer than that.
    pub fn shorten(&mut self, longest: Duration) {
        self.next = self.next.min(longest);
    }

    /// Begins again with the first pause.
    pub const fn restart(&mut self) {
        self.next = self.pauses.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let millis = Duration::from_millis;
        let mut growing = Pauses { first: millis(100), longest: millis(300) }.begin();
        let taken: Vec<_> = (0..4).map(|_| growing.take()).collect();
        assert_eq!(taken, [100, 200, 300, 300].map(millis));
        growing.shorten(millis(150));
        assert_eq!([growing.take(), growing.take()], [150, 300].map(millis));
        growing.restart();
        assert_eq!((growing.next(), growing.take()), (millis(100), millis(100)));
        let mut same = Pauses::of(millis(5)).begin();
        assert_eq!([same.take(), same.take()], [millis(5); 2]);
    }
}
