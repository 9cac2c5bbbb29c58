//! The stored form of keys: the form in which memtables, indexes, filters and the row cache use a user's key.
//!
//! ```text
//!   KeyCodec::Plain    user key                                    bytewise order: ranges and scans
//!   KeyCodec::Hashed   fingerprint, 8 bytes big-endian | user key  the order of a hash: lookups, and walks over all keys
//! ```
//!
//! The index of a keyspace determines its codec. The log holds user keys, so that the meaning of a record does not
//! depend on the index.
//!
//! Invariant: two user keys are equal exactly if their stored forms are equal.

use super::key_hash;

/// The number of bytes of the fingerprint in front of a hashed key.
const FINGERPRINT: usize = 8;

/// A key in its stored form, with its hash.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The hash of the key ([`KeyCodec::hash`]).
    pub hash: u64,
}

/// The way in which a keyspace stores its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyCodec {
    /// The stored key is the user's key.
    #[default]
    Plain,
    /// The stored key is the fingerprint of the user's key, followed by the user's key.
    Hashed,
}

impl KeyCodec {
    /// The stored form of a user's key. If the stored form differs from the user's key, `buf` holds the stored form.
    #[inline]
    pub fn stored<'a>(self, key: &'a [u8], buf: &'a mut Vec<u8>) -> &'a [u8] {
        match self {
            KeyCodec::Plain => key,
            KeyCodec::Hashed => {
                buf.clear();
                buf.extend_from_slice(&key_hash(key).to_be_bytes());
                buf.extend_from_slice(key);
                debug_assert_eq!(self.user(buf), key, "readers find the user's key behind the fingerprint");
                buf
            }
        }
    }

    /// The number of bytes of a stored key before the user's key.
    #[inline]
    pub fn prefix(self) -> usize {
        match self {
            KeyCodec::Plain => 0,
            KeyCodec::Hashed => FINGERPRINT,
        }
    }

    /// The user's key that a stored key contains.
    #[inline]
    pub fn user(self, stored: &[u8]) -> &[u8] {
        &stored[self.prefix()..]
    }

    /// The hash of a stored key for filters and caches. If the stored key has a fingerprint, the hash is the
    /// fingerprint.
    #[inline]
    pub fn hash(self, stored: &[u8]) -> u64 {
        match self {
            KeyCodec::Plain => key_hash(stored),
            KeyCodec::Hashed => {
                let fingerprint = stored.first_chunk::<FINGERPRINT>().expect("a hashed key has its fingerprint");
                u64::from_be_bytes(*fingerprint)
            }
        }
    }

    /// A stored key with its hash.
    #[inline]
    pub fn hashed(self, key: &[u8]) -> HashedKey<'_> {
        HashedKey { key, hash: self.hash(key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_key_gives_back_the_users_key_and_its_hash() {
        for key in [&b"a"[..], b"some longer key", &[0; 40]] {
            let mut buf = Vec::new();
            for codec in [KeyCodec::Plain, KeyCodec::Hashed] {
                let stored = codec.stored(key, &mut buf).to_vec();
                assert_eq!((codec.user(&stored), codec.hash(&stored)), (key, key_hash(key)), "{codec:?}");
                assert_eq!(stored.len(), codec.prefix() + key.len());
            }
        }
    }

    #[test]
    fn hashed_keys_are_in_the_order_of_their_hashes() {
        let stored = |key: u32| KeyCodec::Hashed.stored(&key.to_be_bytes(), &mut Vec::new()).to_vec();
        let mut keys: Vec<u32> = (0..1000).collect();
        keys.sort_by_key(|key| stored(*key));
        assert!(keys.windows(2).all(|pair| key_hash(&pair[0].to_be_bytes()) <= key_hash(&pair[1].to_be_bytes())));
        assert_ne!(keys, (0..1000).collect::<Vec<_>>());
    }
}
